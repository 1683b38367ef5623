#include "search_space.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <type_traits>

#include "foresail/base/error.h"
#include "layout_laws.h"

namespace foresail::planner {
namespace {

constexpr std::int64_t kLayoutsMax = 1'000'000'000;
constexpr double kSecondsPerHour = 3600;
constexpr double kSecondsPerDay = 86'400;
constexpr double kJoulesPerKilowattHour = 3.6e6;

std::vector<int> divisors(int number, int most) {
  std::vector<int> found;
  for (int each = 1; each <= std::min(number, most); ++each) {
    if (number % each == 0) found.push_back(each);
  }
  return found;
}

template <class T>
void fill(std::vector<T>& list, std::initializer_list<std::type_identity_t<T>> all) {
  if (list.empty()) list = all;
}

/// The first law that the degrees alone break, whatever the rest of the layout is.
std::vector<BrokenLaw> degree_laws(const SearchProblem& problem, const Mesh& mesh) {
  program::Training training = problem.base.training;
  training.global_batch_size = mesh.layout.dp;  // the batch is a matter of the microbatch size too
  std::vector<BrokenLaw> broken = check_laws(problem.base.model, mesh.layout, training, mesh.gpus);
  const bool is_even = problem.space.stages == std::vector{StageLayers{}};
  std::erase_if(broken, [&](const BrokenLaw& law) {
    return law.name == "passes_max" || law.name == "experts_need_sequence_parallel" ||
           (law.name == "layers_by_stages" && !is_even);
  });
  return broken;
}

}  // namespace

SearchSpace completed(const SearchProblem& problem) {
  SearchSpace space = problem.space;
  const int devices = problem.base.cluster.nodes * problem.base.cluster.node.devices;
  fill(space.gpus, {devices});
  fill(space.cp, {1});
  fill(space.cp_kind, {models::ContextParallel::Ring, models::ContextParallel::AllGather,
                       models::ContextParallel::AllToAll});
  const int experts = problem.base.model.experts.count;
  if (space.ep.empty()) space.ep = experts > 0 ? divisors(experts, experts) : std::vector<int>{1};
  if (experts == 0) {
    fill(space.etp, {0});
  } else {
    fill(space.etp, {0, 1});
  }
  if (problem.base.model.experts.shared == 0) {
    fill(space.overlap_ep, {0});
  } else {
    fill(space.overlap_ep, {1, 0});
  }
  fill(space.microbatch_size, {1, 2, 4, 8, 16});
  fill(space.sequence_parallel, {1, 0});
  fill(space.zero_stage, {0, 1, 2, 3});
  fill(space.optimizer_offload, {0, 1});
  fill(space.recompute,
       {models::Recompute::None, models::Recompute::Selective, models::Recompute::Full});
  fill(space.schedule,
       {ScheduleKind::Interleaved, ScheduleKind::OneForwardOneBackward, ScheduleKind::ZbH1,
        ScheduleKind::ZbH2, ScheduleKind::ZbV, ScheduleKind::DualPipe, ScheduleKind::Gpipe});
  fill(space.overlap_tp, {1, 0});
  fill(space.overlap_pp, {1, 0});
  fill(space.overlap_dp, {true, false});
  fill(space.overlap_aligned, {false, {true, false}, {false, true}, true});
  if (space.rank_order.empty()) space.rank_order = {Layout{}.rank_order};
  if (space.placement.empty()) {
    DeviceOrder packed;
    for (int d = 0; d < devices; ++d) packed.devices.push_back(DeviceId(static_cast<unsigned>(d)));
    space.placement.push_back(std::move(packed));
  }
  return space;
}

namespace {

/// Values of v that deal the layers of every stage evenly to its chunks.
std::vector<int> chunks_of(const StageLayers& stages, const models::Model& model, int pp) {
  if (!stages.each.empty()) {
    const int count = static_cast<int>(stages.each.size());
    return count % pp == 0 ? std::vector{count / pp} : std::vector<int>{};
  }
  if (stages.first > 0 || stages.last > 0) {
    const int others = pp - (stages.first > 0 ? 1 : 0) - (stages.last > 0 ? 1 : 0);
    const int rest = model.layers - stages.first - stages.last;
    if (rest < 0 || (others > 0 && rest % others != 0)) return {};
    const int each = others > 0 ? rest / others : 0;
    return divisors(std::gcd(each, std::gcd(stages.first, stages.last)), model.layers);
  }
  const int layers =
      model.layers + (stages.account_for_embedding ? 1 : 0) + (stages.account_for_loss ? 1 : 0);
  return layers % pp == 0 ? divisors(layers / pp, model.layers) : std::vector<int>{};
}

}  // namespace

std::vector<int> chunk_choices(const SearchSpace& space, const models::Model& model, int pp) {
  if (!space.v.empty()) return space.v;
  if (pp == 1) return {1};
  std::vector<int> chunks;
  for (const StageLayers& stages : space.stages) {
    for (const int each : chunks_of(stages, model, pp)) {
      if (std::ranges::find(chunks, each) == chunks.end()) chunks.push_back(each);
    }
  }
  if (chunks.empty()) return {1};
  std::ranges::sort(chunks);
  const bool has_mirrored =
      std::ranges::find(space.schedule, ScheduleKind::DualPipe) != space.schedule.end();
  // Its two chunks are copies of one part.
  if (has_mirrored && std::ranges::find(chunks, 2) == chunks.end()) chunks.push_back(2);
  return chunks;
}

std::vector<int> shard_choices(const SearchSpace& space, const models::Model& model,
                               const Layout& layout) {
  if (!space.shard_size.empty()) return space.shard_size;
  std::vector<int> sizes = {0};
  Layout tried = layout;
  tried.zero_stage = 1;
  const int ranks = layout.dp * layout.cp;
  for (const int size : divisors(ranks, ranks - 1)) {
    tried.shard_size = size;
    if (check_sharding(model, tried).empty()) sizes.push_back(size);
  }
  return sizes;
}

std::int64_t layouts_per_mesh(const SearchSpace& space, const models::Model& model,
                              const Layout& layout) {
  const std::array<std::size_t, 13> sizes = {chunk_choices(space, model, layout.pp).size(),
                                             space.stages.size(),
                                             shard_choices(space, model, layout).size(),
                                             space.schedule.size(),
                                             space.microbatch_size.size(),
                                             space.sequence_parallel.size(),
                                             space.zero_stage.size(),
                                             space.optimizer_offload.size(),
                                             space.recompute.size(),
                                             space.overlap_tp.size(),
                                             space.overlap_pp.size(),
                                             space.overlap_dp.size(),
                                             space.overlap_aligned.size()};
  std::int64_t product = 1;
  for (const std::size_t size : sizes) {
    product *= static_cast<std::int64_t>(size);
    if (product > kLayoutsMax) return product;
  }
  return product;
}

namespace {

/// Collects meshes, and counts those that cannot be.
class MeshList {
 public:
  MeshList(const SearchProblem& problem, const SearchSpace& space, SearchOutcome& outcome)
      : problem_(problem), space_(space), outcome_(outcome) {}

  std::vector<Mesh> make() {
    for (const int gpus : space_.gpus) {
      for (std::size_t p = 0; p < space_.placement.size(); ++p) {
        for (const auto& order : space_.rank_order) {
          Mesh mesh;
          mesh.gpus = gpus;
          mesh.placement = static_cast<int>(p);
          mesh.layout.rank_order = order;
          add_degrees(mesh);
        }
      }
    }
    return std::move(meshes_);
  }

 private:
  void add_degrees(Mesh mesh) {
    const models::Model& model = problem_.base.model;
    const auto tps = space_.tp.empty() ? divisors(mesh.gpus, model.heads) : space_.tp;
    const auto pps = space_.pp.empty() ? divisors(mesh.gpus, model.layers) : space_.pp;
    for (const int tp : tps) {
      for (const int cp : space_.cp) {
        for (const int pp : pps) {
          mesh.layout.tp = tp;
          mesh.layout.cp = cp;
          mesh.layout.pp = pp;
          const std::int64_t rest = mesh.gpus / (std::int64_t{tp} * cp * pp);
          std::vector<int> dps = space_.dp;
          if (dps.empty()) dps = {std::max(1, static_cast<int>(rest))};
          for (const int dp : dps) {
            mesh.layout.dp = dp;
            add_experts(mesh);
          }
        }
      }
    }
  }

  /// What experts and the ranks of a sequence do: part of the mesh, since it decides who exchanges
  /// what with whom.
  void add_experts(Mesh mesh) {
    // Without cp there is one kind, which all stand for.
    std::vector<models::ContextParallel> kinds = space_.cp_kind;
    if (mesh.layout.cp == 1) kinds = {models::ContextParallel::AllGather};
    for (const models::ContextParallel kind : kinds) {
      for (const int ep : space_.ep) {
        for (const int etp : space_.etp) {
          if (etp == mesh.layout.tp && is_tp_listed()) {
            count_equivalent(mesh);
            continue;
          }
          for (const int overlaps : space_.overlap_ep) {
            mesh.layout.cp_kind = kind;
            mesh.layout.ep = ep;
            mesh.layout.etp = etp;
            mesh.layout.overlap.ep = overlaps != 0;
            add(mesh);
          }
        }
      }
    }
  }

  /// Whether experts cut like all else are tried under the name 0.
  bool is_tp_listed() const { return std::ranges::find(space_.etp, 0) != space_.etp.end(); }

  std::int64_t layouts_of(const Mesh& mesh) const {
    return layouts_per_mesh(space_, problem_.base.model, mesh.layout);
  }

  void count_equivalent(const Mesh& mesh) {
    const std::int64_t layouts =
        layouts_of(mesh) * static_cast<std::int64_t>(space_.overlap_ep.size());
    outcome_.enumerated += layouts;
    outcome_.equivalent += layouts;
  }

  void add(const Mesh& mesh) {
    const std::int64_t layouts = layouts_of(mesh);
    outcome_.enumerated += layouts;
    if (outcome_.enumerated > kLayoutsMax) {
      throw Error(ErrorCode::InvalidInput,
                  fmt::format("the search space has more than {} layouts", kLayoutsMax));
    }
    const auto broken = degree_laws(problem_, mesh);
    if (broken.empty()) {
      meshes_.push_back(mesh);
      return;
    }
    LawCount& law = outcome_.law[broken.front().name];
    law.count += layouts;
    if (law.example.empty()) law.example = broken.front().message;
  }

  const SearchProblem& problem_;
  const SearchSpace& space_;
  SearchOutcome& outcome_;
  std::vector<Mesh> meshes_;
};

}  // namespace

std::vector<Mesh> meshes(const SearchProblem& problem, const SearchSpace& space,
                         SearchOutcome& outcome) {
  return MeshList(problem, space, outcome).make();
}

Layout plain_form(const Layout& layout, const models::Stack& stack) {
  Layout plain = layout;
  // Copies of experts may lie within tp.
  const bool has_replicas = layout.dp * layout.cp > 1 || layout.expert_dp() > 1;
  if (layout.tp == 1) plain.overlap.tp = false;
  if (layout.etp == layout.tp) plain.etp = 0;
  if (layout.pp == 1) {
    plain.overlap.pp = false;
    plain.schedule = ScheduleKind::OneForwardOneBackward;
  }
  if (!has_replicas) {
    plain.zero_stage = 0;
    // With a pipeline it still says when the copies of a tied matrix are summed.
    if (layout.pp == 1) plain.overlap.dp = false;
    plain.overlap.aligned = false;
  }
  // Without sharding there are no gathers; those of two chunks start with the step either way.
  if (plain.zero_stage == 0) plain.overlap.dp.parameters |= plain.overlap.dp.gradients;
  if (plain.zero_stage == 0 || layout.v == 2) plain.overlap.aligned.parameters = false;
  // Fused attention keeps no scores that could be made again.
  if (layout.recompute.what == models::Recompute::Selective && stack.flash_attention) {
    models::RecomputeModules& modules = plain.recompute.modules;
    modules.core_attention = false;
    if (!modules.norm && !modules.activation && !modules.mlp) plain.recompute = {};
  }
  // Under a pipeline gradients leave once per step either way, and are freed as late.
  if (layout.pp > 1 && plain.zero_stage == 2) plain.zero_stage = 1;
  if (!plain.has_copies_of_shards() || plain.zero_stage == 0) plain.shard_size = 0;
  if (layout.schedule == ScheduleKind::Interleaved && layout.group_size == layout.pp) {
    plain.group_size = 0;
  }
  return plain;
}

program::Placement placement_on(const DeviceOrder& order, int ranks) {
  program::Placement placement;
  for (int rank = 0; rank < ranks; ++rank) {
    placement.device_of.push_back(order.devices.at(static_cast<std::size_t>(rank)));
  }
  return placement;
}

double objective_of(const SearchProblem& problem, double step_s, int gpus) {
  switch (problem.objective) {
    case Objective::StepTime:
      break;
    case Objective::TokensPerGpu:
      return step_s * gpus;
    case Objective::Cost:
      return step_s * gpus * problem.price_per_gpu_hour / kSecondsPerHour;
    case Objective::Energy:
      return step_s * gpus * problem.watts_per_gpu / kJoulesPerKilowattHour;
    case Objective::Days:
      const program::Training& training = problem.base.training;
      const double per_step =
          static_cast<double>(training.global_batch_size * training.sequence_length);
      return step_s * problem.tokens / per_step / kSecondsPerDay;
  }
  return step_s;
}

}  // namespace foresail::planner
