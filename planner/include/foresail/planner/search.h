/// \file
/// The search for the best Plan of a space: laws, memory, an admissible bound, best-first.
///
/// Every layout x placement of the space is enumerated. Broken laws and missing memory reject it,
/// with their reason; the others get a lower bound of their step time and are simulated in the
/// order of their bounds, until the next bound is no better than the best time found. That plan is
/// then optimal in the space under the cost that `CostModel::step` gives.
///
/// The planner never sees the simulator: all costs come through program::CostModel.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "foresail/base/names.h"
#include "foresail/planner/plan.h"
#include "foresail/program/cost_model.h"

namespace foresail::planner {

/// The order in which a job takes the devices of its cluster: rank r runs on devices[r].
struct DeviceOrder {
  std::string name = "packed";
  std::vector<DeviceId> devices;
};

/// Choices of every axis, in order of preference: of plans that run alike, the one with the
/// earlier choices stands for all. An empty list is "all": for tp and pp the divisors of the
/// number of GPUs up to the model's heads and layers; for ep the divisors of the number of experts;
/// for etp 0 (tp) and 1; for dp what is left; for v the divisors of the layers per stage (embedding
/// and loss counted where `stages` counts them); for microbatch_size powers of two up to 16; for
/// shard_size 0 and the smaller sizes that keep its laws; for the others every value.
struct SearchSpace {
  std::vector<int> gpus;  ///< sizes of the job; all: the whole cluster, and nothing smaller
  std::vector<int> tp, pp, dp, v;
  std::vector<int> cp = {1};
  std::vector<models::ContextParallel> cp_kind = {models::ContextParallel::AllGather};
  std::vector<int> ep = {1};    ///< all: the divisors of the number of experts
  std::vector<int> etp = {0};   ///< 0: tp
  std::vector<int> overlap_ep;  ///< 0 or 1; all: both with shared experts, else 0
  std::vector<StageLayers> stages = {StageLayers{}};  ///< even, unless said otherwise
  std::vector<std::int64_t> microbatch_size;
  std::vector<int> sequence_parallel;  ///< 0 or 1
  std::vector<int> zero_stage;
  std::vector<int> shard_size = {0};
  std::vector<double> optimizer_offload = {0};  ///< all: 0 and 1
  std::vector<Recomputation> recompute;         ///< all: the three plain ones
  std::vector<ScheduleKind> schedule;
  std::vector<int> overlap_tp, overlap_pp;              ///< 0 or 1
  std::vector<DataMessages> overlap_dp;                 ///< all: both and neither
  std::vector<DataMessages> overlap_aligned = {false};  ///< all: every value
  std::vector<std::array<program::Axis, program::kAxisCount>> rank_order = {Layout{}.rank_order};
  std::vector<DeviceOrder> placement;  ///< all: packed
};

/// What is minimised: seconds of a step; GPU-seconds, currency or kilowatt-hours of a step; days to
/// train on `tokens`. Cost is gpus * price * time and energy gpus * power * time, so their optimum
/// is also that of TokensPerGpu; they differ from StepTime and Days only where the space varies
/// `gpus`.
enum class Objective { StepTime, TokensPerGpu, Cost, Energy, Days };

/// Which memory must fit: the point estimate, or its upper bound (memory_bound.h). The second is
/// checked just before a plan is simulated.
enum class MemoryRule { Expected, AtMost };

struct SearchProblem {
  /// Model, cluster, stack, training, network and seed; layout and placement are searched.
  Plan base;
  SearchSpace space;
  Objective objective = Objective::StepTime;
  MemoryRule memory = MemoryRule::Expected;
  double price_per_gpu_hour = 0;  ///< in any currency; 0: unknown
  double watts_per_gpu = 0;       ///< drawn by each GPU through the whole step; 0: unknown
  double tokens = 0;              ///< of the whole training; 0: unknown
};

struct SearchProgress {
  std::int64_t layouts = 0;  ///< of the space
  std::int64_t meshes = 0, meshes_done = 0;
  std::int64_t open = 0;  ///< plans that have a bound and are not settled
  std::int64_t simulated = 0;
  double best_s = 0;   ///< 0: none yet
  double bound_s = 0;  ///< no plan that is left is faster
};

struct Candidate;

/// Global: the best of the space. PerSize: the best of each size of job (`gpus`), which together
/// are the front of time against GPUs.
enum class Scope { Global, PerSize };

struct SearchOptions {
  int threads = 1;  ///< the outcome does not depend on it
  int top = 1;      ///< the search stops when the best `top` are proved
  /// Plans to simulate even where the proof needs fewer (PerSize: of each size), best bounds first.
  int simulated_min = 1;
  Scope scope = Scope::Global;
  /// Asked before every layout and every plan, by any thread: the search stops with the gap that is
  /// left. While layouts are listed it stops that at once; of those listed at least one is still
  /// simulated. May be empty. An outcome that a clock has cut depends on the machine.
  std::function<bool()> should_stop;
  std::function<void(const SearchProgress&)> progress;  ///< may be empty; called by one thread
  /// The step time of a plan that an earlier search of the same base has simulated, so that it is
  /// not simulated again. May be empty; asked by any thread.
  std::function<std::optional<Duration>(const Candidate&)> recall;
  /// What has just been simulated (not what was recalled). May be empty; called by one thread.
  std::function<void(const std::vector<Candidate>&)> keep;
};

/// One plan of the space: where it stands, and what is known of it.
struct Candidate {
  Layout layout;
  int placement = 0;  ///< index into the space's placements
  double bound_s = 0;
  double step_s = 0;     ///< simulated; 0: not
  double objective = 0;  ///< of step_s, in the objective's unit
  Bytes peak;            ///< memory of its fullest stage; 0: not computed
};

/// Layouts of the space that a law forbids.
struct LawCount {
  std::int64_t count = 0;
  std::string example;  ///< message of the first
};

struct SearchOutcome {
  std::vector<Candidate> simulated;     ///< best first; ties: as enumerated
  std::int64_t enumerated = 0;          ///< all layouts x placements
  std::int64_t equivalent = 0;          ///< run exactly as another of them
  std::map<std::string, LawCount> law;  ///< by name of the first law broken
  std::int64_t out_of_memory = 0;
  std::string memory_example;
  std::int64_t bounded = 0;   ///< legal, seemed to fit: priced by the bound
  std::int64_t unseen = 0;    ///< that SearchOptions::should_stop left without law, memory or bound
  std::int64_t recalled = 0;  ///< of the simulated: by SearchOptions::recall
  double bound_cpu_s = 0;     ///< CPU time of enumeration and bounds, of all threads
  /// Nothing that is left can be better than the last of the top (PerSize: of its size).
  bool is_proved = false;
  /// Lowest bound, as objective, of what was not simulated; 0: none, or unknown. For layouts unseen
  /// it counts the model's GEMMs at the device's peak.
  double left_objective = 0;
  /// Of the best plan: the part of its objective that a plan not simulated might save; 0 if proved.
  double gap() const;
};

/// Throws Error{InvalidInput} if the space is empty or too large (1e9 layouts); an outcome without
/// simulated plans means that none is feasible.
SearchOutcome search(const SearchProblem& problem, const SearchOptions& options,
                     const program::CostModel& cost);

/// The Plan of a candidate, with the message cost that `cost` gives.
Plan plan_of(const SearchProblem& problem, const Candidate& candidate,
             const program::CostModel& cost);

/// What stands in the way of one layout.
struct Verdict {
  enum class Kind { BrokenLaw, OutOfMemory, Bounded, Simulated } kind = Kind::BrokenLaw;
  Candidate candidate;
  std::string law;     ///< name of the first broken law
  std::string reason;  ///< laws or memory, with their terms
  Bytes excess;        ///< memory that its fullest stage lacks by the point estimate
};

/// The objective of a step of `step_s` seconds on `gpus`, in its unit.
double objective_of(const SearchProblem& problem, double step_s, int gpus);

/// Judges `layout` as the search does, whether it is in the space or not: law, memory, bound, and
/// if `outcome` has simulated it, its time. Placement: index into the space's.
Verdict judge(const SearchProblem& problem, const SearchOutcome& outcome, const Layout& layout,
              int placement, const program::CostModel& cost);

/// Layouts of the space that differ from `layout` in one choice; of the degrees, dp follows tp and
/// pp. In the order of the axes and their choices, each once.
std::vector<Layout> neighbours(const SearchProblem& problem, const Layout& layout);

/// An admissible lower bound of the step time in seconds: `cost.step` of the lowered plan is never
/// less. Requires a plan without broken laws. search_bound.h has the proof. `Coarse` is what the
/// search computes for every plan, `Fine` also runs the schedule.
enum class BoundKind { Coarse, Fine };
double step_bound(const Plan& plan, BoundKind kind, const program::CostModel& cost);

/// Plan::message_cost as `cost` sees it: the time of the first stage's message over the compute of
/// its first chunk's forward, three digits, at least 0.05. Requires a plan without broken laws.
double message_cost(const Plan& plan, const program::CostModel& cost);

/// Candidates of which no other is both faster and, in peak memory and in GPUs, no larger; among
/// those that were simulated, fastest first.
std::vector<Candidate> pareto_front(const SearchOutcome& outcome);

}  // namespace foresail::planner

namespace foresail {
template <>
inline constexpr auto kNames<planner::MemoryRule> = std::to_array<Named<planner::MemoryRule>>(
    {{planner::MemoryRule::Expected, "expected"}, {planner::MemoryRule::AtMost, "at_most"}});
template <>
inline constexpr auto kNames<planner::Objective> = std::to_array<Named<planner::Objective>>(
    {{planner::Objective::StepTime, "step_time"},
     {planner::Objective::TokensPerGpu, "tokens_per_s_per_gpu"},
     {planner::Objective::Cost, "cost"},
     {planner::Objective::Energy, "energy"},
     {planner::Objective::Days, "days"}});
}  // namespace foresail
