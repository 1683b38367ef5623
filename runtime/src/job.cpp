#include "foresail/runtime/job.h"

#include <fmt/format.h>

#include "foresail/base/error.h"

namespace foresail::runtime {
namespace {

enum class Support { Yes, No };

void demand(Support support, std::string_view key, std::string_view value,
            std::string_view supported) {
  if (support == Support::Yes) return;
  throw Error(
      ErrorCode::Unsupported,
      fmt::format("{}: {} cannot be executed by this version, only {}", key, value, supported));
}

template <class E>
void demand_choice(E value, E wanted, std::string_view key) {
  demand(value == wanted ? Support::Yes : Support::No, key, to_string(value), to_string(wanted));
}

void demand_switch(bool value, bool wanted, std::string_view key) {
  const auto text = [](bool on) { return on ? "true" : "false"; };
  demand(value == wanted ? Support::Yes : Support::No, key, text(value), text(wanted));
}

void check_model(const Job& job) {
  const models::Model& model = job.model;
  demand(model.positions != models::Positions::Alibi ? Support::Yes : Support::No,
         "model.positions", to_string(model.positions), "learned, rotary");
  demand(model.latent.kv_rank == 0 ? Support::Yes : Support::No, "model.latent_attention.kv_rank",
         std::to_string(model.latent.kv_rank), "ordinary attention");
  const bool has_rows = model.positions != models::Positions::Learned || model.max_positions == 0 ||
                        job.training.sequence_length <= model.max_positions;
  demand(has_rows ? Support::Yes : Support::No, "training.sequence_length",
         std::to_string(job.training.sequence_length),
         fmt::format("up to model.max_positions {}", model.max_positions));
}

void check_layout(const Job& job) {
  demand(job.recompute.empty() ? Support::Yes : Support::No, "layout.recompute", job.recompute,
         "none, selective, full");
  for (const std::vector<ChunkPart>& stage : job.parts) {
    for (const ChunkPart& part : stage) {
      demand(part.end_layer > part.first_layer ? Support::Yes : Support::No, "layout.stages",
             "a chunk without layers", "chunks with at least one");
    }
  }
  demand(job.optimizer_offload == 0 ? Support::Yes : Support::No, "layout.optimizer_offload",
         fmt::format("{}", job.optimizer_offload), "0");
  const DType precision = job.training.precision;
  demand(precision == DType::Fp32 || precision == DType::Bf16 ? Support::Yes : Support::No,
         "training.precision", to_string(precision), "fp32, bf16");
  demand_choice(job.training.gradient_dtype, DType::Fp32, "training.gradient_dtype");
}

void check_stack(const models::Stack& stack) {
  demand_switch(stack.padded_heads, false, "stack.padded_heads");
  demand_switch(stack.early_stop_recompute, false, "stack.early_stop_recompute");
  const bool has_fused_softmax = stack.fused_kernels && !stack.flash_attention;
  demand(stack.fused_softmax_multiple == 1 || !has_fused_softmax ? Support::Yes : Support::No,
         "stack.fused_softmax_multiple", std::to_string(stack.fused_softmax_multiple), "1");
}

}  // namespace

void check_supported(const Job& job) {
  check_model(job);
  check_layout(job);
  check_stack(job.split.stack);
}

}  // namespace foresail::runtime
