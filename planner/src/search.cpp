#include "foresail/planner/search.h"

#include <algorithm>
#include <atomic>
#include <map>
#include <memory>
#include <optional>
#include <queue>
#include <utility>

#include "foresail/base/error.h"
#include "foresail/planner/memory_bound.h"
#include "foresail/planner/parallel.h"
#include "search_enumerate.h"
#include "search_floor.h"

namespace foresail::planner {
namespace {

// Fixed sizes, so that what is priced does not depend on the number of threads.
constexpr std::size_t kRefinedAtOnce = 32;
constexpr std::size_t kSimulatedAtOnce = 4;

class Search {
 public:
  Search(const SearchProblem& problem, const SearchOptions& options, const program::CostModel& cost)
      : problem_(problem),
        space_(completed(problem)),
        options_(options),
        cost_(cost),
        meshes_(meshes(problem, space_, outcome_)) {}

  SearchOutcome run() {
    enumerate_all();
    while (drop_settled()) {
      if (may_leave()) break;
      if (queue_.top().is_fine) {
        simulate_some();
      } else {
        refine_some();
      }
      report();
    }
    outcome_.is_proved = unseen_meshes_.empty() && queue_.empty();
    outcome_.left_objective = left_objective();
    return std::move(outcome_);
  }

 private:
  struct Open {
    double objective;  ///< of the bound
    std::size_t index;
    bool is_fine;
    bool operator<(const Open& other) const {  // the queue's top is the largest
      if (objective != other.objective) return objective > other.objective;
      return index > other.index;
    }
  };

  void enumerate_all() {
    states_.resize(meshes_.size());
    std::vector<MeshCandidates> found(meshes_.size());
    const auto one = [&](std::size_t m) {
      if (is_over_budget()) return;
      states_[m] = std::make_unique<MeshState>(problem_, space_, meshes_[m], cost_);
      found[m] = enumerate(problem_, space_, meshes_[m], *states_[m], options_.should_stop);
      if (!found[m].is_cut) ++meshes_done_;
    };
    for_each_index(options_.threads, meshes_.size(), one, [&] { report(); });
    for (std::size_t m = 0; m < found.size(); ++m) {
      if (!states_[m] || found[m].is_cut) unseen_meshes_.push_back(m);
      if (states_[m]) take(m, found[m]);
    }
    if (!unseen_meshes_.empty()) count_unseen();
  }

  void count_unseen() {
    outcome_.unseen =
        outcome_.enumerated - outcome_.equivalent - outcome_.out_of_memory - outcome_.bounded;
    for (const auto& [name, law] : outcome_.law) outcome_.unseen -= law.count;
  }

  /// Of what is open: the lowest bound, and for layouts that nobody has looked at their floor.
  double left_objective() const {
    double least = queue_.empty() ? 0 : bound();
    for (const std::size_t mesh : unseen_meshes_) {
      const int gpus = meshes_[mesh].gpus;
      const double floor = objective_of(problem_, step_floor(problem_, gpus), gpus);
      if (least == 0 || floor < least) least = floor;
    }
    return least;
  }

  void take(std::size_t mesh, const MeshCandidates& found) {
    for (const auto& [name, law] : found.counts.law) {
      LawCount& sum = outcome_.law[name];
      sum.count += law.count;
      if (sum.example.empty()) sum.example = law.example;
    }
    outcome_.equivalent += found.counts.equivalent;
    outcome_.out_of_memory += found.counts.out_of_memory;
    outcome_.bounded += found.counts.bounded;
    outcome_.bound_cpu_s += found.counts.bound_cpu_s;
    if (found.too_large && outcome_.memory_example.empty()) {
      outcome_.memory_example = states_[mesh]->refine(*found.too_large).out_of_memory;
    }
    for (const Candidate& candidate : found.candidates) {
      queue_.push({candidate.objective, candidates_.size(), false});
      candidates_.push_back(candidate);
      mesh_of_.push_back(mesh);
    }
  }

  double bound() const { return queue_.top().objective; }

  /// Plans that compete: all, or those of one size.
  int group_of(std::size_t index) const {
    return options_.scope == Scope::PerSize ? gpus_of(index) : 0;
  }

  /// Whether a plan might still be among the top.
  bool is_open(const Open& open) const {
    const auto known = objectives_.find(group_of(open.index));
    const auto top = static_cast<std::size_t>(std::max(1, options_.top));
    const auto least = static_cast<std::size_t>(std::max(1, options_.simulated_min));
    if (known == objectives_.end() || known->second.size() < std::max(top, least)) return true;
    return open.objective < known->second[top - 1];
  }

  /// Takes what is settled from the front of the queue; false if nothing is left.
  bool drop_settled() {
    while (!queue_.empty() && !is_open(queue_.top())) queue_.pop();
    return !queue_.empty();
  }

  void refine_some() {
    std::vector<Open> batch;
    while (drop_settled() && !queue_.top().is_fine && batch.size() < kRefinedAtOnce) {
      batch.push_back(queue_.top());
      queue_.pop();
    }
    std::vector<std::optional<MeshState::Refined>> all(batch.size());
    for_each_index(options_.threads, batch.size(), [&](std::size_t i) {
      if (may_leave()) return;
      const std::size_t index = batch[i].index;
      all[i] = states_[mesh_of_[index]]->refine(candidates_[index].layout);
    });
    for (std::size_t i = 0; i < batch.size(); ++i) {
      if (!all[i]) {
        queue_.push(batch[i]);
        continue;
      }
      take_refined(batch[i].index, *all[i]);
    }
  }

  void take_refined(std::size_t index, const MeshState::Refined& refined) {
    Candidate& candidate = candidates_[index];
    if (!refined.out_of_memory.empty()) {
      count_excess(refined.out_of_memory);
      return;
    }
    candidate.peak = refined.peak;
    candidate.bound_s = std::max(candidate.bound_s, refined.bound_s);
    candidate.objective = objective_of(problem_, candidate.bound_s, gpus_of(index));
    queue_.push({candidate.objective, index, true});
  }

  void count_excess(const std::string& reason) {
    ++outcome_.out_of_memory;
    if (outcome_.memory_example.empty()) outcome_.memory_example = reason;
  }

  /// By how much the upper bound of its memory is too large, if that counts.
  std::string upper_excess(const Candidate& candidate) const {
    if (problem_.memory == MemoryRule::Expected) return {};
    const Plan plan = plan_of(problem_, candidate, cost_);
    return describe_upper_excess(plan, lower(plan));
  }

  int gpus_of(std::size_t index) const { return meshes_[mesh_of_[index]].gpus; }

  /// What became of one of a batch of plans.
  struct Tried {
    enum class Kind { Left, TooLarge, Recalled, Made } kind = Kind::Left;
    std::string excess;
  };

  void simulate_some() {
    std::vector<Open> batch;
    while (drop_settled() && queue_.top().is_fine && batch.size() < kSimulatedAtOnce) {
      batch.push_back(queue_.top());
      queue_.pop();
    }
    std::vector<Tried> tried(batch.size());
    for_each_index(options_.threads, batch.size(), [&](std::size_t i) {
      // The first of the first batch is always simulated.
      const bool is_only = outcome_.simulated.empty() && i == 0;
      if (is_only || !is_over_budget()) tried[i] = simulate(batch[i].index);
    });
    std::vector<Candidate> made;
    for (std::size_t i = 0; i < batch.size(); ++i) {
      const std::size_t index = batch[i].index;
      if (tried[i].kind == Tried::Kind::Left) queue_.push(batch[i]);
      if (tried[i].kind == Tried::Kind::TooLarge) count_excess(tried[i].excess);
      if (candidates_[index].step_s <= 0) continue;
      insert(index);
      outcome_.recalled += tried[i].kind == Tried::Kind::Recalled ? 1 : 0;
      if (tried[i].kind == Tried::Kind::Made) made.push_back(candidates_[index]);
    }
    if (options_.keep && !made.empty()) options_.keep(made);
  }

  Tried simulate(std::size_t index) {
    Candidate& candidate = candidates_[index];
    std::string excess = upper_excess(candidate);
    if (!excess.empty()) return {Tried::Kind::TooLarge, std::move(excess)};
    std::optional<Duration> known;
    if (options_.recall) known = options_.recall(candidate);
    candidate.step_s = to_seconds(known ? *known : step_of(candidate));
    candidate.objective = objective_of(problem_, candidate.step_s, gpus_of(index));
    return {known ? Tried::Kind::Recalled : Tried::Kind::Made, {}};
  }

  Duration step_of(const Candidate& candidate) const {
    const Plan plan = plan_of(problem_, candidate, cost_);
    return cost_.step(lower(plan), plan.placement);
  }

  void insert(std::size_t index) {
    const Candidate& candidate = candidates_[index];
    const auto at = std::ranges::upper_bound(outcome_.simulated, candidate.objective, {},
                                             &Candidate::objective);
    outcome_.simulated.insert(at, candidate);
    std::vector<double>& of_group = objectives_[group_of(index)];
    of_group.insert(std::ranges::upper_bound(of_group, candidate.objective), candidate.objective);
  }

  bool is_over_budget() const { return options_.should_stop && options_.should_stop(); }
  /// Whether the rest may be left as it is: something has been simulated.
  bool may_leave() const { return !outcome_.simulated.empty() && is_over_budget(); }

  void report() const {
    if (!options_.progress) return;
    SearchProgress progress;
    progress.layouts = outcome_.enumerated;
    progress.meshes = static_cast<std::int64_t>(meshes_.size());
    progress.meshes_done = meshes_done_;
    progress.open = static_cast<std::int64_t>(queue_.size());
    progress.simulated = static_cast<std::int64_t>(outcome_.simulated.size());
    if (!outcome_.simulated.empty()) progress.best_s = outcome_.simulated.front().step_s;
    if (!queue_.empty()) progress.bound_s = candidates_[queue_.top().index].bound_s;
    options_.progress(progress);
  }

  const SearchProblem& problem_;
  SearchSpace space_;
  const SearchOptions& options_;
  const program::CostModel& cost_;
  SearchOutcome outcome_;
  std::vector<Mesh> meshes_;
  std::vector<std::unique_ptr<MeshState>> states_;
  std::vector<Candidate> candidates_;
  std::vector<std::size_t> mesh_of_;
  std::map<int, std::vector<double>> objectives_;  // of what was simulated, by group, ascending
  std::atomic<std::int64_t> meshes_done_ = 0;
  std::priority_queue<Open> queue_;
  std::vector<std::size_t> unseen_meshes_;  // the budget ended before all of theirs was enumerated
};

}  // namespace

SearchOutcome search(const SearchProblem& problem, const SearchOptions& options,
                     const program::CostModel& cost) {
  return Search(problem, options, cost).run();
}

double SearchOutcome::gap() const {
  if (is_proved || simulated.empty()) return 0;
  const double best = simulated.front().objective;
  return std::max(0.0, (best - left_objective) / best);
}

Plan plan_of(const SearchProblem& problem, const Candidate& candidate,
             const program::CostModel& cost) {
  const SearchSpace space = completed(problem);
  Plan plan = problem.base;
  plan.layout = candidate.layout;
  plan.placement = placement_on(space.placement[static_cast<std::size_t>(candidate.placement)],
                                candidate.layout.world_size());
  plan.message_cost = message_cost(plan, cost);
  return plan;
}

std::vector<Candidate> pareto_front(const SearchOutcome& outcome) {
  std::vector<Candidate> by_time = outcome.simulated;
  std::ranges::stable_sort(by_time, {}, &Candidate::step_s);
  std::vector<Candidate> front;
  for (const Candidate& each : by_time) {
    const bool is_beaten = std::ranges::any_of(front, [&](const Candidate& other) {
      return other.peak <= each.peak && other.layout.world_size() <= each.layout.world_size();
    });
    if (!is_beaten) front.push_back(each);
  }
  return front;
}

}  // namespace foresail::planner
