#include "layer_peak.h"

#include <algorithm>
#include <string>
#include <utility>

#include "expert_peak.h"
#include "latent_peak.h"
#include "linear_peak.h"
#include "live_tensors.h"
#include "saved.h"
#include "shape.h"

namespace foresail::models {
namespace {

/// Sizes in bytes.
struct Sizes {
  std::int64_t shard = 0;     ///< hidden states of the own tokens
  std::int64_t gathered = 0;  ///< hidden states of all tokens if sequence parallelism gathers them
  std::int64_t query = 0, key = 0, value = 0, context = 0, qkv = 0, fc1 = 0, ffn = 0;
  /// Inputs of linear layers as they are kept (fp8: one byte per element).
  std::int64_t kept_shard = 0, kept_context = 0, kept_ffn = 0;
  std::int64_t scores = 0;       ///< of unfused attention, else 0
  std::int64_t wide_scores = 0;  ///< in fp32, if the softmax needs them so
  std::int64_t mask = 0;         ///< one byte per score of attention dropout
  /// Keys and values repeated for unfused attention, of all ranks that are gathered.
  std::int64_t repeated_keys = 0, repeated_values = 0;
  std::int64_t key_gradient = 0, value_gradient = 0;  ///< of the same, by head
};

/// What context parallelism holds beside the own queries, keys and values, in bytes.
struct Exchange {
  std::int64_t keys = 0;           ///< keys and values of other ranks
  std::int64_t key_gradients = 0;  ///< their gradients before they go home
  std::int64_t blocks = 0;         ///< outputs of a ring's blocks before they are merged
  bool trades_heads = false;       ///< all-to-all: what goes out stands beside what comes in
};

Exchange exchange_of(const Share& share) {
  if (!share.is_context_parallel) return {};
  const std::int64_t own = share.tokens * (share.key_width + share.value_width) * share.element;
  switch (share.cp_kind) {
    case ContextParallel::AllGather:
      return {.keys = share.cp * own, .key_gradients = share.cp * own};
    case ContextParallel::Ring:  // the block at hand and the next, and the gradients of both
      return {.keys = std::min(2, share.cp - 1) * own,
              .key_gradients = 2 * own,
              .blocks = share.cp * share.tokens * share.context_width * kFp32};
    case ContextParallel::AllToAll:
      break;
  }
  return {.trades_heads = true};
}

Sizes sizes_of(const Model& model, const Split& split, const Share& share) {
  const std::int64_t e = share.element;
  Sizes sizes;
  sizes.shard = share.shard_elements() * e;
  if (share.is_sequence_parallel) sizes.gathered = share.hidden_elements() * e;
  sizes.query = share.tokens * share.query_width * e;
  sizes.key = share.tokens * share.key_width * e;
  sizes.value = share.tokens * share.value_width * e;
  sizes.context = share.tokens * share.context_width * e;
  sizes.qkv = share.tokens * share.qkv_width * e;
  sizes.fc1 = share.tokens * share.fc1_width * e;
  sizes.ffn = share.tokens * share.ffn * e;
  sizes.kept_shard = share.shard_elements() * share.linear_element;
  sizes.kept_context = share.tokens * share.context_width * share.linear_element;
  sizes.kept_ffn = share.tokens * share.ffn * share.linear_element;
  if (split.stack.flash_attention) return sizes;
  sizes.scores = share.scores() * e;
  if (share.is_softmax_wide) sizes.wide_scores = share.scores() * kFp32;
  if (model.dropout) sizes.mask = share.scores();
  const bool gathers_keys =
      share.is_context_parallel && share.cp_kind == ContextParallel::AllGather;
  const std::int64_t ranks = gathers_keys ? share.cp : 1;
  const bool repeats = share.key_width < share.query_width;
  if (repeats) sizes.repeated_keys = ranks * sizes.query;
  if (repeats) sizes.repeated_values = ranks * sizes.context;
  sizes.key_gradient = repeats ? sizes.repeated_keys : sizes.key;
  sizes.value_gradient = repeats ? sizes.repeated_values : sizes.value;
  return sizes;
}

class LayerWalk {
 public:
  LayerWalk(const Model& model, const Split& split, const Share& share, const ExpertShare* experts)
      : is_flash_(split.stack.flash_attention),
        is_parallel_(model.block == Block::Parallel),
        stops_early_(split.stack.early_stop_recompute),
        again_{.norms = split.reruns(&RecomputeModules::norm),
               .activation = split.reruns(&RecomputeModules::activation),
               .mlp = split.reruns(&RecomputeModules::mlp)},
        dropout_(model.dropout ? share.shard_elements() : 0),
        model_(model),
        split_(split),
        share_(share),
        experts_(experts),
        size_(sizes_of(model, split, share)),
        exchange_(exchange_of(share)),
        linear_(live_, share) {}

  void start(std::vector<SavedTensor> there) { live_ = LiveTensors(std::move(there)); }

  void forward(Graph graph) {
    project_forward();
    attention_forward();
    if (graph == Graph::Dropped) {
      live_.drop({"query", "key", "value", "softmax.output", "softmax.wide_output",
                  "attention.dropout_mask", "attention.dropout_output", "context.by_head"});
    }
    linear_.row_forward("proj", is_parallel_ ? 0 : share_.context_width);
    if (!is_parallel_) {
      live_.make("dropout_mask1", dropout_);
      live_.make("norm2.input", size_.shard);
      live_.drop({"proj.output"});
    }
    if (experts_ != nullptr) {
      ExpertPeak(live_, split_, share_, *experts_).forward(graph);
    } else {
      mlp_forward(graph);
    }
    live_.make("dropout_mask2", dropout_);
    live_.make("layer.output", size_.shard);
    live_.drop({"proj.output", "fc2.output", "experts.output", "shared_fc2.output"});
  }

  void backward() {
    live_.make("output.gradient", size_.shard);
    if (experts_ != nullptr) {
      if (dropout_ > 0) live_.make("experts.output.gradient", size_.shard);
      ExpertPeak(live_, split_, share_, *experts_).backward();
      live_.drop({"dropout_mask2", "experts.output.gradient"});
    } else {
      mlp_backward();
    }
    if (!is_parallel_) norm2_backward();
    linear_.row_backward(
        "proj", share_.context_width,
        is_parallel_ ? LinearPeak::Gradient::LastOfShared : LinearPeak::Gradient::Own);
    attention_backward();
    if (has_latent(model_)) {
      rerun_norm("q_down");
      LatentPeak(live_, model_, share_).backward();
    } else {
      if (!is_parallel_) rerun_norm("qkv");
      // In a parallel block the gradient is added to that of the other branch.
      const std::int64_t parted = share_.qkv_width + (is_parallel_ ? share_.hidden : 0);
      linear_.column_backward("qkv", {share_.hidden, parted}, "qkv.gradient");
    }
    live_.drop({"activation.input.gradient"});
    live_.make("input.gradient", size_.shard);
  }

  enum class Scores { Saved, Recomputed };
  void set_scores(Scores scores) { scores_ = scores; }
  void stop_early() { live_.drop({"layer.output"}); }
  std::vector<SavedTensor> peak() && { return std::move(live_).peak(); }

 private:
  void project_forward() {
    if (has_latent(model_)) {
      LatentPeak(live_, model_, share_).forward();
      if (again_.norms) live_.drop({"q_down.input"});
      if (exchange_.trades_heads) live_.make("qkv.output", size_.qkv);
      if (is_flash_) live_.drop({"qkv.output"});
      return;
    }
    live_.make("qkv.input", size_.kept_shard);
    live_.make("qkv.gathered_input", size_.gathered);
    live_.make("qkv.output", size_.qkv);
    linear_.column_forward(share_.qkv_width);
    if (!is_parallel_) live_.drop({"qkv.gathered_input"});
    if (!is_parallel_ && again_.norms) live_.drop({"qkv.input"});
    // Fused attention reads it where it is.
    if (is_flash_ && !exchange_.trades_heads) live_.drop({"qkv.output"});
    live_.make("query", size_.query);
    live_.make("key", size_.key);
    live_.make("value", size_.value);
    if (is_flash_) live_.drop({"qkv.output"});
  }

  void mlp_forward(Graph graph) {
    if (!is_parallel_) {
      live_.make("fc1.input", size_.kept_shard);
      live_.make("fc1.gathered_input", size_.gathered);
    }
    live_.make("activation.input", size_.fc1);
    if (!is_parallel_) linear_.column_forward(share_.fc1_width);
    live_.drop({"qkv.gathered_input", "fc1.gathered_input"});
    if (again_.norms) live_.drop({"qkv.input", "fc1.input"});
    live_.make("fc2.input", size_.kept_ffn);
    if (graph == Graph::Dropped || again_.mlp) live_.drop({"activation.input"});
    linear_.row_forward("fc2", share_.ffn);
    if (again_.mlp || again_.activation) live_.drop({"fc2.input"});
  }

  /// What the modules that run again make, in front of the kernels that read it.
  void rerun_norm(const std::string& linear) {
    if (again_.norms) live_.make(linear + ".input", size_.kept_shard);
  }
  void rerun_mlp() {
    if (again_.mlp) {
      live_.make("fc1.gathered_input", is_parallel_ ? 0 : size_.gathered);
      live_.make("activation.input", size_.fc1);
      if (!is_parallel_) linear_.column_forward(share_.fc1_width);
      live_.drop({"fc1.gathered_input"});
    }
    if (again_.mlp || again_.activation) live_.make("fc2.input", size_.kept_ffn);
    if (again_.mlp && !stops_early_) {
      linear_.row_forward("fc2", share_.ffn);
      live_.drop({"fc2.output"});
    }
  }

  void mlp_backward() {
    rerun_norm(is_parallel_ ? "qkv" : "fc1");
    rerun_mlp();
    if (dropout_ > 0) live_.make("fc2.output.gradient", size_.shard);
    linear_.row_backward(
        "fc2", share_.ffn,
        is_parallel_ ? LinearPeak::Gradient::FirstOfShared : LinearPeak::Gradient::Own);
    live_.drop({"dropout_mask2"});
    live_.make("activation.input.gradient", size_.fc1);
    live_.drop({"fc2.input.gradient", "activation.input"});
    if (!is_parallel_) {
      linear_.column_backward("fc1", {share_.hidden, share_.fc1_width},
                              "activation.input.gradient");
    }
  }

  void norm2_backward() {
    live_.make("norm2.input.gradient", size_.shard);
    live_.drop({"output.gradient", "fc1.whole_input.gradient", "fc1.input.gradient", "norm2.input",
                "router.input.gradient"});
    if (dropout_ > 0) live_.make("proj.output.gradient", size_.shard);
    live_.drop({"dropout_mask1"});
  }

  // Heads of all-to-all come and go in tensors of their own.
  void attention_forward() {
    live_.make("exchanged_keys", exchange_.keys);
    live_.make("repeated_keys", size_.repeated_keys);
    live_.make("attention.scores", size_.scores);
    live_.drop({"repeated_keys"});
    softmax_forward();
    live_.make("repeated_values", size_.repeated_values);
    live_.make("block_outputs", exchange_.blocks);
    if (!is_flash_ || exchange_.trades_heads) live_.make("context.by_head", size_.context);
    live_.drop({"repeated_values"});
    live_.make("proj.input", size_.kept_context);
    live_.drop({"qkv.output", "exchanged_keys", "block_outputs"});
    if (!is_flash_) live_.drop({"context.by_head"});
  }

  // Cast and scaled in new tensors, masked in place, and the result cast back.
  void softmax_forward() {
    live_.make("wide_scores", size_.wide_scores);
    live_.make("scaled_scores", size_.wide_scores);
    live_.drop({"wide_scores"});
    live_.make("softmax.wide_output", size_.wide_scores);
    live_.drop({"scaled_scores"});
    live_.make("softmax.output", size_.scores);
    live_.drop({"attention.scores"});
    if (size_.mask == 0) return;
    live_.make("attention.dropout_mask", size_.mask);
    live_.make("attention.dropout_output", size_.scores);
  }

  void recompute_scores() {
    live_.make("attention.scores", size_.scores);
    softmax_forward();
  }

  void attention_backward() {
    if (is_flash_) {
      if (exchange_.trades_heads) live_.make("context.gradient", size_.context);
      live_.make("exchanged_keys", exchange_.keys);
      live_.make("exchanged_keys.gradient", exchange_.key_gradients);
      if (exchange_.trades_heads) live_.make("traded_gradients", size_.qkv);
      live_.make("qkv.gradient", size_.qkv);
    } else {
      unfused_backward();
    }
    live_.drop({"query", "key", "value", "softmax.output", "softmax.wide_output",
                "attention.dropout_mask", "attention.dropout_output", "proj.input.gradient",
                "exchanged_keys", "exchanged_keys.gradient", "context.gradient", "traded_gradients",
                "context.by_head"});
  }

  void unfused_backward() {
    if (scores_ == Scores::Recomputed) recompute_scores();
    live_.make("exchanged_keys", exchange_.keys);
    live_.make("context.gradient", size_.context);
    live_.make("repeated_values", size_.repeated_values);
    live_.make("softmax.output.gradient", size_.scores);
    live_.drop({"repeated_values"});
    live_.make("value.gradient", size_.value_gradient);
    live_.make("wide_scores.gradient", 2 * size_.wide_scores);  // of two steps at once
    live_.make("scores.gradient", size_.scores);
    live_.drop({"wide_scores.gradient"});
    live_.make("repeated_keys", size_.repeated_keys);
    live_.make("query.gradient", size_.query);
    live_.drop({"repeated_keys"});
    live_.make("key.gradient", size_.key_gradient);
    live_.make("exchanged_keys.gradient", exchange_.key_gradients);
    live_.make("merged_gradients", size_.qkv);
    live_.make("qkv.gradient", size_.qkv);
    live_.drop({"softmax.output.gradient", "value.gradient", "scores.gradient", "query.gradient",
                "key.gradient", "merged_gradients"});
  }

  /// What a selective recomputation runs again, but for the core attention.
  struct Again {
    bool norms = false, activation = false, mlp = false;
  };

  bool is_flash_, is_parallel_, stops_early_;
  Again again_;
  std::int64_t dropout_;  // bytes of a mask of hidden states
  const Model& model_;
  const Split& split_;
  const Share& share_;
  const ExpertShare* experts_;
  Sizes size_;
  Exchange exchange_;
  Scores scores_ = Scores::Saved;
  LiveTensors live_;
  LinearPeak linear_;
};

}  // namespace

std::vector<SavedTensor> layer_forward_peak(const Model& model, const Split& split,
                                            const Share& share, const ExpertShare* experts) {
  LayerWalk walk(model, split, share, experts);
  walk.start({layer_saved(model, split, share, experts).front()});
  walk.forward(split.recompute == Recompute::Full ? Graph::Dropped : Graph::Kept);
  return std::move(walk).peak();
}

std::vector<SavedTensor> layer_backward_peak(const Model& model, const Split& split,
                                             const Share& share, const ExpertShare* experts) {
  LayerWalk walk(model, split, share, experts);
  walk.start(layer_saved(model, split, share, experts));
  if (split.recompute == Recompute::Full) {
    walk.forward(Graph::Kept);
    if (split.stack.early_stop_recompute) walk.stop_early();
  }
  if (split.reruns(&RecomputeModules::core_attention)) {
    walk.set_scores(LayerWalk::Scores::Recomputed);
  }
  walk.backward();
  return std::move(walk).peak();
}

}  // namespace foresail::models
