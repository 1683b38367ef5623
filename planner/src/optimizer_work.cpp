// What the optimizer runs, and whom it asks for norms.
#include "optimizer_offload.h"
#include "stage_work.h"

namespace foresail::planner {
namespace {

/// Query, key and value in one, and projection; latent attention has a pair down and up for keys
/// and values, and one for queries if they have a rank.
std::int64_t attention_matrices(const models::Model& model) {
  constexpr std::int64_t kPlain = 2;
  if (model.latent.kv_rank == 0) return kPlain;
  return kPlain + 2 + (model.latent.query_rank > 0 ? 1 : 0);
}

/// Behind the attention, but for routed experts: the two of the MLP; or the router's, those of the
/// shared experts side by side, and their gate's.
std::int64_t mlp_matrices(const models::Model& model, int layer) {
  constexpr std::int64_t kMlp = 2;
  if (!models::has_experts(model, layer)) return kMlp;
  const models::Experts& experts = model.experts;
  return 1 + (experts.shared > 0 ? kMlp : 0) + (experts.shared_gate ? 1 : 0);
}

}  // namespace

Kernel optimizer_kernel(const Plan& plan, const StageWork& work) {
  Kernel kernel;
  kernel.kind = KernelKind::Optimizer;
  kernel.name = "optimizer";
  kernel.dtype = DType::Fp32;
  kernel.m = stepped_parameters(plan, work).sum() - offloaded_parameters(plan, work).sum();
  kernel.bytes = kernel.m * Bytes(28);
  return kernel;
}

Kernel apply_kernel(const Plan& plan, const StageWork& work) {
  Kernel kernel;
  kernel.kind = KernelKind::Elementwise;
  kernel.name = "optimizer.apply";
  kernel.dtype = DType::Fp32;
  kernel.m = stepped_parameters(plan, work).sum();  // law optimizer_offload_needs_adam
  kernel.bytes = kernel.m * Bytes(12);
  return kernel;
}

std::int64_t matrix_count(const Plan& plan, int stage) {
  const bool has_bucket = has_embedding_bucket(plan);
  std::int64_t count = 0;
  bool has_tied = false;
  for (int chunk = 0; chunk < chunk_count(plan); ++chunk) {
    const StagePart part = stage_part(plan, stage, chunk);
    for (int layer = part.first_layer; layer < part.end_layer; ++layer) {
      count += attention_matrices(plan.model) + mlp_matrices(plan.model, layer);
    }
    has_tied = has_tied || (has_bucket && (part.has_embedding || part.has_head));
    if (part.has_embedding) {
      count += plan.model.positions == models::Positions::Learned ? 1 : 0;
      count += has_bucket ? 0 : 1;
    }
    if (part.has_head && !plan.model.tied_embeddings) ++count;
  }
  return count + (has_tied ? 1 : 0);
}

std::int64_t expert_matrix_count(const Plan& plan, int stage) {
  std::int64_t count = 0;
  for (int chunk = 0; chunk < chunk_count(plan); ++chunk) {
    const StagePart part = stage_part(plan, stage, chunk);
    for (int layer = part.first_layer; layer < part.end_layer; ++layer) {
      if (models::has_experts(plan.model, layer)) {
        count += 2 * (plan.model.experts.count / plan.layout.ep);
      }
    }
  }
  return count;
}

std::string norms_communicator(const Plan& plan) {
  if (plan.training.optimizer != program::Optimizer::Lamb) return {};
  const Layout& layout = plan.layout;
  const bool is_sharded = layout.zero_stage > 0 && layout.shard_ranks() > 1;
  if (is_sharded && layout.tp > 1) return "norms";
  if (layout.tp > 1) return "tp";
  if (!is_sharded) return {};
  return layout.has_copies_of_shards() ? "shard" : "dp";
}

std::string expert_norms_communicator(const Plan& plan) {
  if (plan.training.optimizer != program::Optimizer::Lamb) return {};
  if (plan.model.experts.count == 0) return {};
  const bool is_sharded = plan.layout.zero_stage > 0 && expert_shard_ranks(plan) > 1;
  if (is_sharded && plan.layout.expert_tp() > 1) return "expert_norms";
  if (plan.layout.expert_tp() > 1) return "etp";
  if (!is_sharded) return {};
  return plan.layout.has_copies_of_shards() ? "expert_shard" : "edp";
}

}  // namespace foresail::planner
