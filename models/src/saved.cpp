#include "saved.h"

#include <string>
#include <utility>

#include "experts.h"
#include "latent.h"
#include "shape.h"

namespace foresail::models {
namespace {

void append(std::vector<SavedTensor>& list, const std::vector<SavedTensor>& more) {
  list.insert(list.end(), more.begin(), more.end());
}

// Inputs of linear layers are kept for the weight gradient; with sequence parallelism only the own
// shard, which is gathered again.
SavedTensor column_input(const std::string& name, const Share& share) {
  return {name, Bytes(share.shard_elements() * share.linear_element)};
}

void add_scores(std::vector<SavedTensor>& saved, const Model& model, const Share& share) {
  if (share.is_softmax_wide) {
    saved.push_back({"softmax.wide_output", Bytes(share.scores() * kFp32)});
  }
  saved.push_back({"softmax.output", Bytes(share.scores() * share.element)});
  if (!model.dropout) return;
  saved.push_back({"attention.dropout_mask", Bytes(share.scores())});
  saved.push_back({"attention.dropout_output", Bytes(share.scores() * share.element)});
}

void add_mask(std::vector<SavedTensor>& saved, const std::string& name, const Model& model,
              const Share& share) {
  if (model.dropout) saved.push_back({name, Bytes(share.shard_elements())});
}

/// What a forward leaves out of all that it could keep.
struct LeftOut {
  bool scores = false, norms = false, activation = false, mlp = false;
  const Split& split;
};

LeftOut left_out(const Split& split) {
  LeftOut out{.split = split};
  out.scores = split.stack.flash_attention || split.reruns(&RecomputeModules::core_attention);
  out.norms = split.reruns(&RecomputeModules::norm);
  out.mlp = split.reruns(&RecomputeModules::mlp);
  out.activation = out.mlp || split.reruns(&RecomputeModules::activation);
  return out;
}

std::vector<SavedTensor> kept_by_forward(const Model& model, const Share& share,
                                         const ExpertShare* experts, const LeftOut& out) {
  const std::int64_t e = share.element;
  std::vector<SavedTensor> saved;
  saved.push_back({"norm1.input", Bytes(share.shard_elements() * e)});
  if (has_latent(model)) {
    append(saved, latent_saved(model, share, out.norms ? NormOutput::MadeAgain : NormOutput::Kept));
  } else if (!out.norms) {
    saved.push_back(column_input("qkv.input", share));
  }
  saved.push_back({"query", Bytes(share.tokens * share.query_width * e)});
  saved.push_back({"key", Bytes(share.tokens * share.key_width * e)});
  saved.push_back({"value", Bytes(share.tokens * share.value_width * e)});
  if (!out.scores) add_scores(saved, model, share);
  // Fused attention wants its output again, which is not what proj reads where heads are traded.
  const bool trades = share.is_context_parallel && share.cp_kind == ContextParallel::AllToAll;
  if (trades && out.split.stack.flash_attention) {
    saved.push_back({"context.by_head", Bytes(share.tokens * share.context_width * e)});
  }
  saved.push_back({"proj.input", Bytes(share.tokens * share.context_width * share.linear_element)});
  if (experts != nullptr) {
    add_mask(saved, "dropout_mask1", model, share);
    saved.push_back({"norm2.input", Bytes(share.shard_elements() * e)});
    append(saved, experts_saved(share, *experts, out.split));
    add_mask(saved, "dropout_mask2", model, share);
    return saved;
  }
  if (model.block == Block::Serial) {
    add_mask(saved, "dropout_mask1", model, share);
    saved.push_back({"norm2.input", Bytes(share.shard_elements() * e)});
    if (!out.norms) saved.push_back(column_input("fc1.input", share));
  }
  if (!out.mlp) {
    saved.push_back({"activation.input", Bytes(share.tokens * share.fc1_width * e)});
  }
  if (!out.activation) {
    saved.push_back({"fc2.input", Bytes(share.tokens * share.ffn * share.linear_element)});
  }
  add_mask(saved, "dropout_mask2", model, share);
  return saved;
}

}  // namespace

std::vector<SavedTensor> layer_saved(const Model& model, const Split& split, const Share& share,
                                     const ExpertShare* experts) {
  if (split.recompute == Recompute::Full) {
    return {{"layer.input", Bytes(share.shard_elements() * share.element)}};
  }
  return kept_by_forward(model, share, experts, left_out(split));
}

std::vector<SavedTensor> layer_retained(const Model& model, const Share& share,
                                        const ExpertShare* experts) {
  const std::int64_t e = share.linear_element;
  const std::int64_t context = share.tokens * share.context_width;
  const std::int64_t ffn = share.tokens * share.ffn;
  std::vector<SavedTensor> retained;
  if (has_latent(model)) {
    append(retained, latent_retained(model, share));
  } else {
    retained.push_back(column_input("qkv.input", share));
    retained.push_back({"qkv.gradient", Bytes(share.tokens * share.qkv_width * e)});
  }
  retained.push_back({"proj.input", Bytes(context * e)});
  if (experts != nullptr) {
    retained.push_back({"proj.gradient", Bytes(share.hidden_elements() * e)});
    append(retained, experts_retained(share, *experts));
    return retained;
  }
  // In the parallel block proj and fc2 share their output's gradient, qkv and fc1 their input.
  if (model.block == Block::Serial) {
    retained.push_back({"proj.gradient", Bytes(share.hidden_elements() * e)});
    retained.push_back(column_input("fc1.input", share));
  }
  retained.push_back({"fc1.gradient", Bytes(share.tokens * share.fc1_width * e)});
  retained.push_back({"fc2.input", Bytes(ffn * e)});
  retained.push_back({"fc2.gradient", Bytes(share.hidden_elements() * e)});
  return retained;
}

}  // namespace foresail::models
