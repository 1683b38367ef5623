#include "layer_peak.h"

#include <string>
#include <utility>

#include "live_tensors.h"
#include "saved.h"

namespace foresail::models {
namespace {

enum class Graph { Kept, Dropped };

/// Sizes in bytes.
struct Sizes {
  std::int64_t full = 0, shard = 0;  ///< hidden states of all tokens, of the own ones
  std::int64_t gathered = 0;         ///< `full` if sequence parallelism gathers it
  std::int64_t scattered = 0;        ///< `shard` beside a full tensor, the same condition
  std::int64_t query = 0, kv = 0, qkv = 0, fc1 = 0, ffn = 0;
  /// Inputs of linear layers as they are kept (fp8: one byte per element).
  std::int64_t kept_shard = 0, kept_query = 0, kept_ffn = 0;
  std::int64_t scores = 0;    ///< of unfused attention, else 0
  std::int64_t repeated = 0;  ///< keys or values repeated for unfused attention
  std::int64_t keys = 0;      ///< keys and values of all context-parallel ranks
  std::int64_t mask = 0;      ///< one byte per score of attention dropout
};

Sizes sizes_of(const Model& model, const Split& split, const Share& share) {
  const std::int64_t e = share.element;
  Sizes sizes;
  sizes.full = share.hidden_elements() * e;
  sizes.shard = share.shard_elements() * e;
  if (share.is_sequence_parallel) {
    sizes.gathered = sizes.full;
    sizes.scattered = sizes.shard;
  }
  sizes.query = share.tokens * share.query_width * e;
  sizes.kv = share.tokens * share.kv_width * e;
  sizes.qkv = share.tokens * share.qkv_width * e;
  sizes.fc1 = share.tokens * share.fc1_width * e;
  sizes.ffn = share.tokens * share.ffn * e;
  sizes.kept_shard = share.shard_elements() * share.linear_element;
  sizes.kept_query = share.tokens * share.query_width * share.linear_element;
  sizes.kept_ffn = share.tokens * share.ffn * share.linear_element;
  if (share.is_context_parallel) {
    sizes.keys = 2 * share.samples * share.sequence * share.kv_width * e;
  }
  if (split.stack.flash_attention) return sizes;
  sizes.scores = share.scores() * e;
  if (share.kv_width < share.query_width) sizes.repeated = sizes.query;
  if (model.dropout) sizes.mask = share.scores();
  return sizes;
}

class LayerWalk {
 public:
  LayerWalk(const Model& model, const Split& split, const Share& share)
      : is_flash_(split.stack.flash_attention),
        is_parallel_(model.block == Block::Parallel),
        dropout_(model.dropout ? share.shard_elements() : 0),
        size_(sizes_of(model, split, share)) {}

  void start(std::vector<SavedTensor> there) { live_ = LiveTensors(std::move(there)); }

  void forward(Graph graph) {
    live_.make("qkv.input", size_.kept_shard);
    live_.make("qkv.gathered_input", size_.gathered);
    live_.make("qkv.output", size_.qkv);
    if (!is_parallel_) live_.drop({"qkv.gathered_input"});
    attention_forward();
    if (graph == Graph::Dropped) {
      live_.drop({"query", "key", "value", "softmax.output", "attention.dropout_mask",
                  "attention.dropout_output"});
    }
    row_forward("proj");
    if (!is_parallel_) {
      live_.make("dropout_mask1", dropout_);
      live_.make("norm2.input", size_.shard);
      live_.drop({"proj.output"});
      live_.make("fc1.input", size_.kept_shard);
      live_.make("fc1.gathered_input", size_.gathered);
    }
    live_.make("activation.input", size_.fc1);
    live_.drop({"qkv.gathered_input", "fc1.gathered_input"});
    live_.make("fc2.input", size_.kept_ffn);
    if (graph == Graph::Dropped) live_.drop({"activation.input"});
    row_forward("fc2");
    live_.make("dropout_mask2", dropout_);
    live_.make("layer.output", size_.shard);
    live_.drop({"proj.output", "fc2.output"});
  }

  void backward() {
    live_.make("output.gradient", size_.shard);
    if (dropout_ > 0) live_.make("fc2.output.gradient", size_.shard);
    row_backward("fc2", size_.ffn);
    live_.drop({"dropout_mask2"});
    live_.make("activation.input.gradient", size_.fc1);
    live_.drop({"fc2.input.gradient", "activation.input"});
    if (!is_parallel_) {
      column_backward("fc1");
      live_.make("norm2.input.gradient", size_.shard);
      live_.drop(
          {"output.gradient", "fc1.whole_input.gradient", "fc1.input.gradient", "norm2.input"});
      if (dropout_ > 0) live_.make("proj.output.gradient", size_.shard);
      live_.drop({"dropout_mask1"});
    }
    row_backward("proj", size_.query);
    attention_backward();
    column_backward("qkv");
    live_.make("input.gradient", size_.shard);
  }

  enum class Scores { Saved, Recomputed };
  void set_scores(Scores scores) { scores_ = scores; }
  void stop_early() { live_.drop({"layer.output"}); }
  std::vector<SavedTensor> peak() && { return std::move(live_).peak(); }

 private:
  // In sequence parallelism the reduced shard stands beside the full output.
  void row_forward(const std::string& name) {
    if (size_.gathered > 0) {
      live_.make(name + ".partial_output", size_.full);
      live_.make(name + ".output", size_.shard);
      live_.drop({name + ".partial_output"});
    } else {
      live_.make(name + ".output", size_.full);
    }
  }

  void attention_forward() {
    if (is_flash_) live_.drop({"qkv.output"});  // read where it is
    live_.make("query", size_.query);
    live_.make("key", size_.kv);
    live_.make("value", size_.kv);
    live_.make("gathered_keys", size_.keys);
    live_.make("repeated_keys", size_.repeated);
    live_.make("attention.scores", size_.scores);
    live_.drop({"repeated_keys"});
    live_.make("softmax.output", size_.scores);
    live_.drop({"attention.scores"});
    if (size_.mask > 0) {
      live_.make("attention.dropout_mask", size_.mask);
      live_.make("attention.dropout_output", size_.scores);
    }
    live_.make("repeated_values", size_.repeated);
    if (!is_flash_) live_.make("context.by_head", size_.query);
    live_.drop({"repeated_values"});
    live_.make("proj.input", size_.kept_query);
    live_.drop({"context.by_head", "qkv.output", "gathered_keys"});
  }

  void row_backward(const std::string& name, std::int64_t width) {
    const bool is_shared = is_parallel_ && name == "fc2";  // proj reads the same gradient
    if (!is_parallel_ || is_shared) live_.make("gathered_gradient", size_.gathered);
    live_.make(name + ".input.gradient", width);
    live_.drop({name + ".input", name + ".output.gradient"});
    if (!is_shared) live_.drop({"gathered_gradient"});
  }

  void column_backward(const std::string& name) {
    live_.make(name + ".gathered_input", size_.gathered);
    live_.make(name + ".whole_input.gradient", size_.full);
    live_.make(name + ".input.gradient", size_.scattered);
    live_.drop(
        {name + ".gathered_input", name + ".input", "activation.input.gradient", "qkv.gradient"});
    if (size_.gathered > 0) live_.drop({name + ".whole_input.gradient"});
  }

  void recompute_scores() {
    live_.make("attention.scores", size_.scores);
    live_.make("softmax.output", size_.scores);
    live_.drop({"attention.scores"});
    if (size_.mask == 0) return;
    live_.make("attention.dropout_mask", size_.mask);
    live_.make("attention.dropout_output", size_.scores);
  }

  void attention_backward() {
    if (is_flash_) {
      live_.make("gathered_keys", size_.keys);
      live_.make("gathered_keys.gradient", size_.keys);
      live_.make("qkv.gradient", size_.qkv);
    } else {
      unfused_backward();
    }
    live_.drop({"query", "key", "value", "softmax.output", "attention.dropout_mask",
                "attention.dropout_output", "proj.input.gradient", "gathered_keys",
                "gathered_keys.gradient"});
  }

  void unfused_backward() {
    if (scores_ == Scores::Recomputed) recompute_scores();
    const std::int64_t by_head = size_.repeated > 0 ? size_.query : size_.kv;
    live_.make("gathered_keys", size_.keys);
    live_.make("context.gradient", size_.query);
    live_.make("repeated_values", size_.repeated);
    live_.make("softmax.output.gradient", size_.scores);
    live_.drop({"repeated_values"});
    live_.make("value.gradient", by_head);
    live_.make("scores.gradient", size_.scores);
    live_.make("repeated_keys", size_.repeated);
    live_.make("query.gradient", size_.query);
    live_.drop({"repeated_keys"});
    live_.make("key.gradient", by_head);
    live_.make("merged_gradients", size_.qkv);
    live_.make("qkv.gradient", size_.qkv);
    live_.drop({"context.gradient", "softmax.output.gradient", "value.gradient", "scores.gradient",
                "query.gradient", "key.gradient", "merged_gradients"});
  }

  bool is_flash_, is_parallel_;
  std::int64_t dropout_;  // bytes of a mask of hidden states
  Sizes size_;
  Scores scores_ = Scores::Saved;
  LiveTensors live_;
};

}  // namespace

std::vector<SavedTensor> layer_forward_peak(const Model& model, const Split& split,
                                            const Share& share) {
  LayerWalk walk(model, split, share);
  walk.start({layer_saved(model, split, share).front()});
  walk.forward(split.recompute == Recompute::Full ? Graph::Dropped : Graph::Kept);
  return std::move(walk).peak();
}

std::vector<SavedTensor> layer_backward_peak(const Model& model, const Split& split,
                                             const Share& share) {
  LayerWalk walk(model, split, share);
  walk.start(layer_saved(model, split, share));
  if (split.recompute == Recompute::Full) {
    walk.forward(Graph::Kept);
    if (split.stack.early_stop_recompute) walk.stop_early();
  }
  if (split.recompute == Recompute::Selective) walk.set_scores(LayerWalk::Scores::Recomputed);
  walk.backward();
  return std::move(walk).peak();
}

}  // namespace foresail::models
