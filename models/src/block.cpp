#include "block.h"

#include "activation.h"
#include "attention.h"
#include "experts.h"
#include "latent.h"
#include "linear.h"
#include "shape.h"

namespace foresail::models {
namespace {

/// The linear layers of a block.
struct Linears {
  Linear qkv, proj, fc1, fc2;
};

Linears linears_of(const Share& share) {
  const DType dtype = share.linear_dtype;
  const bool cut = share.is_pipelined;
  return {.qkv = {"qkv", share.hidden, share.qkv_width, dtype, cut},
          .proj = {"proj", share.context_width, share.hidden, dtype, cut},
          .fc1 = {"fc1", share.hidden, share.fc1_width, dtype, cut},
          .fc2 = {"fc2", share.ffn, share.hidden, dtype, cut}};
}

void norm_forward(PassKernels& pass, const std::string& name) {
  const Share& share = pass.share();
  pass.memory_bound(KernelKind::Norm, name, share.shard_elements() * 2 * share.element);
}

void norm_backward(PassKernels& pass, const std::string& name) {
  const Share& share = pass.share();
  pass.memory_bound(KernelKind::Norm, name + ".backward",
                    share.shard_elements() * 4 * share.element);
}

std::int64_t rotated_bytes(const Share& share, const Model& model) {
  if (has_latent(model)) return latent_rope_bytes(share, model);
  return share.tokens * (share.query_width + share.key_width) * 2 * share.element;
}

void rotate_forward(PassKernels& pass, const Model& model) {
  if (model.positions != Positions::Rotary) return;
  pass.elementwise("rope", rotated_bytes(pass.share(), model));
}

void rotate_backward(PassKernels& pass, const Model& model) {
  if (model.positions != Positions::Rotary) return;
  pass.elementwise("rope.backward", rotated_bytes(pass.share(), model));
}

void project_forward(PassKernels& pass, const Model& model, const Linears& linears) {
  if (has_latent(model)) {
    latent_forward(pass, model);
  } else {
    column_forward(pass, linears.qkv);
  }
  rotate_forward(pass, model);
}

void project_backward(PassKernels& pass, const Model& model, const Linears& linears) {
  if (has_latent(model)) {
    latent_backward(pass, model);
  } else {
    column_backward(pass, {linears.qkv});
  }
}

/// Bias, dropout and residual addition behind a row-parallel layer: "proj", "dropout1", "add1".
struct Residual {
  std::string linear;
  std::string dropout;
  std::string add;
};
const Residual kAttentionResidual{"proj", "dropout1", "add1"};
const Residual kMlpResidual{"fc2", "dropout2", "add2"};

void residual_forward(PassKernels& pass, const Residual& residual, const Model& model,
                      const Stack& stack) {
  const Share& share = pass.share();
  const std::int64_t elements = share.shard_elements();
  const std::int64_t e = share.element;
  if (stack.fused_kernels && model.dropout) {
    pass.elementwise(residual.add, elements * 4 * e);
    return;
  }
  if (!stack.fused_kernels && model.biases) {
    pass.elementwise(residual.linear + ".bias", elements * 2 * e);
  }
  if (!stack.fused_kernels && model.dropout) {
    pass.elementwise(residual.dropout, elements * (2 * e + 1));
  }
  pass.elementwise(residual.add, elements * 3 * e);
}

void residual_backward(PassKernels& pass, const Residual& residual, const Model& model,
                       const Stack& stack) {
  const Share& share = pass.share();
  const std::int64_t elements = share.shard_elements();
  const std::int64_t e = share.element;
  if (stack.fused_kernels && model.dropout) {
    pass.elementwise(residual.add + ".backward", elements * (5 * e + 1));
    return;
  }
  pass.elementwise(residual.add + ".backward", elements * 3 * e);
  if (!stack.fused_kernels && model.dropout) {
    pass.elementwise(residual.dropout + ".backward", elements * (2 * e + 1));
  }
  if (!stack.fused_kernels && model.biases) {
    pass.elementwise(residual.linear + ".bias.backward", elements * e);
  }
}

ActivationShape activation_of(const Share& share) {
  return {"", share.tokens, share.fc1_width, share.ffn};
}

// From the projected queries, keys and values back to their gradients.
void core_backward(PassKernels& pass, const Model& model, const Split& split) {
  if (split.reruns(&RecomputeModules::core_attention) && !split.stack.flash_attention) {
    pass.set_suffix(".recompute");
    attention_forward(pass, model, split.stack);
    pass.set_suffix("");
  }
  attention_backward(pass, model, split.stack);
  rotate_backward(pass, model);
}

void rerun_norm(PassKernels& pass, const std::string& name, const Split& split) {
  if (!split.reruns(&RecomputeModules::norm)) return;
  pass.set_suffix(".recompute");
  norm_forward(pass, name);
  pass.set_suffix("");
}

// What the backward of fc2 and of the activation needs and was not kept. Like every checkpoint the
// MLP's runs to its end, unless it stops in front of the last GEMM.
void rerun_mlp(PassKernels& pass, const Model& model, const Split& split) {
  const Linears linears = linears_of(pass.share());
  const bool is_whole = split.reruns(&RecomputeModules::mlp);
  pass.set_suffix(".recompute");
  if (is_whole) {
    const bool is_serial = model.block == Block::Serial;
    if (is_serial) column_forward(pass, linears.fc1);
    if (!is_serial) plain_forward(pass, linears.fc1);
  }
  if (is_whole || split.reruns(&RecomputeModules::activation)) {
    activation_forward(pass, model, split.stack, activation_of(pass.share()));
  }
  if (is_whole && !split.stack.early_stop_recompute) row_forward(pass, linears.fc2);
  pass.set_suffix("");
}

void serial_forward(PassKernels& pass, const Model& model, const Stack& stack,
                    const ExpertShare* experts, Extent extent) {
  const Linears linears = linears_of(pass.share());
  norm_forward(pass, "norm1");
  project_forward(pass, model, linears);
  attention_forward(pass, model, stack);
  row_forward(pass, linears.proj);
  residual_forward(pass, kAttentionResidual, model, stack);
  norm_forward(pass, "norm2");
  if (experts != nullptr) {
    const bool is_whole = extent == Extent::Whole;
    experts_forward(pass, model, stack, *experts,
                    is_whole ? ExpertExtent::Whole : ExpertExtent::UpToLastSaved);
    if (is_whole) residual_forward(pass, kMlpResidual, model, stack);
    return;
  }
  column_forward(pass, linears.fc1);
  activation_forward(pass, model, stack, activation_of(pass.share()));
  if (extent == Extent::UpToLastGemm) return;
  row_forward(pass, linears.fc2);
  residual_forward(pass, kMlpResidual, model, stack);
}

void serial_backward(PassKernels& pass, const Model& model, const Split& split,
                     const ExpertShare* experts) {
  const Linears linears = linears_of(pass.share());
  residual_backward(pass, kMlpResidual, model, split.stack);
  rerun_norm(pass, "norm2", split);
  if (experts != nullptr) {
    experts_backward(pass, model, split, *experts);
  } else {
    rerun_mlp(pass, model, split);
    row_backward(pass, linears.fc2);
    activation_backward(pass, model, split.stack, activation_of(pass.share()));
    column_backward(pass, {linears.fc1});
  }
  norm_backward(pass, "norm2");
  residual_backward(pass, kAttentionResidual, model, split.stack);
  row_backward(pass, linears.proj);
  core_backward(pass, model, split);
  rerun_norm(pass, "norm1", split);
  project_backward(pass, model, linears);
  norm_backward(pass, "norm1");
}

void parallel_forward(PassKernels& pass, const Model& model, const Stack& stack, Extent extent) {
  const Linears linears = linears_of(pass.share());
  norm_forward(pass, "norm1");
  column_forward(pass, linears.qkv);
  rotate_forward(pass, model);
  attention_forward(pass, model, stack);
  plain_forward(pass, linears.proj);
  plain_forward(pass, linears.fc1);
  activation_forward(pass, model, stack, activation_of(pass.share()));
  if (extent == Extent::UpToLastGemm) return;
  row_forward(pass, linears.fc2);
  residual_forward(pass, kMlpResidual, model, stack);
}

void parallel_backward(PassKernels& pass, const Model& model, const Split& split) {
  const Linears linears = linears_of(pass.share());
  residual_backward(pass, kMlpResidual, model, split.stack);
  rerun_norm(pass, "norm1", split);
  rerun_mlp(pass, model, split);
  row_backward(pass, linears.fc2);
  activation_backward(pass, model, split.stack, activation_of(pass.share()));
  plain_backward(pass, linears.proj);
  core_backward(pass, model, split);
  column_backward(pass, {linears.fc1, linears.qkv});
  norm_backward(pass, "norm1");
}

}  // namespace

void block_forward(PassKernels& pass, const Model& model, const Stack& stack,
                   const ExpertShare* experts, Extent extent) {
  if (model.block == Block::Parallel) {
    parallel_forward(pass, model, stack, extent);
  } else {
    serial_forward(pass, model, stack, experts, extent);
  }
}

void block_backward(PassKernels& pass, const Model& model, const Split& split,
                    const ExpertShare* experts) {
  if (model.block == Block::Parallel) {
    parallel_backward(pass, model, split);
  } else {
    serial_backward(pass, model, split, experts);
  }
}

}  // namespace foresail::models
