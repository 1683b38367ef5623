/// \file
/// What dropout takes away. Whether an element goes is one number of a counter-based generator: the
/// key comes from the training seed and the step, the counter says where in the model and in the
/// batch the element stands. So masks do not depend on the layout, and can be made again.
///
/// The four words of a counter:
/// - hidden states: channel / 4; position in the sequence; sample in the batch; place
/// - attention: key position / 4; query position; sample in the batch; place and head
/// The channel or key position modulo 4 says which of the counter's four numbers it is. A place is
/// layer * 2^16 + site * 2^14 (+ head).
#pragma once

#include <ATen/ATen.h>

#include <vector>

#include "philox.h"

namespace foresail::runtime {

/// Of every site: Megatron-LM's defaults of --hidden-dropout and --attention-dropout
/// (megatron/training/arguments.py).
inline constexpr double kDropoutRate = 0.1;
/// A number below it takes its element away.
inline constexpr auto kDropoutThreshold = static_cast<std::uint32_t>(kDropoutRate * 4294967296.0);
/// What stays grows by it, so that sums keep their means.
inline constexpr double kDropoutScale = 1 / (1 - kDropoutRate);

enum class DropoutSite : std::uint32_t { Embedding, Attention, Projection, Mlp };

struct DropoutPlace {
  DropoutSite site = DropoutSite::Embedding;
  int layer = 0;
};

/// Of one step.
PhiloxKey dropout_key(std::uint64_t seed, int step);

/// What is drawn for at the moment: key of the step, and the place of the microbatch's first sample
/// in the batch.
struct DropoutNow {
  PhiloxKey key{};
  std::int64_t first_sample = 0;
};

/// Channels, or positions of keys.
class DropoutElements {
 public:
  DropoutElements() = default;
  /// `elements` [n], ascending in runs, on the host.
  DropoutElements(const at::Tensor& elements, at::Device device);
  DropoutElements narrow(std::int64_t first, std::int64_t count) const;

  struct Run {
    std::int64_t first = 0, count = 0;
  };
  const std::vector<Run>& runs() const { return runs_; }
  std::int64_t size() const { return host_.size(0); }
  /// The same, where masks are.
  const at::Tensor& values() const { return values_; }
  /// Whether all four elements of a counter are there, one behind the other, wherever one is.
  bool has_whole_counters() const { return has_whole_counters_; }

 private:
  at::Tensor host_, values_;
  std::vector<Run> runs_;
  bool has_whole_counters_ = true;
};

/// Rows of elements: words 1 to 3 of their counters, int64 on the device of the mask, each of a
/// shape that broadcasts to that of the rows.
struct DropoutRows {
  at::Tensor position, sample, place;
  /// Elements above the row's position are not drawn, and stay.
  bool is_causal = false;
};

/// True where an element goes, [rows' shape, elements]. The host makes those of CPUs; elsewhere
/// torch's operators make the same where they are, without a copy from the host.
at::Tensor draw_dropped(PhiloxKey key, const DropoutRows& rows, const DropoutElements& elements);
/// The second way, on any device.
at::Tensor draw_dropped_by_operators(PhiloxKey key, const DropoutRows& rows,
                                     const DropoutElements& elements);

/// `values` without what is dropped, the rest scaled; in place.
void drop(at::Tensor& values, const at::Tensor& dropped);
/// The same in a new tensor, in the format of `values`.
at::Tensor without_dropped(const at::Tensor& values, const at::Tensor& dropped);

/// Of hidden states whose row is (position, sample) with `samples` per position.
at::Tensor draw_hidden(const DropoutNow& now, const DropoutPlace& place,
                       const at::Tensor& positions, std::int64_t samples,
                       const DropoutElements& channels);

/// A block of attention: which tokens its queries and keys are.
struct AttentionPairs {
  at::Tensor queries;  ///< positions, where masks are
  DropoutElements keys;
};

/// Draws for attention probabilities [samples, heads, queries, keys] of one block.
struct AttentionDropout {
  DropoutNow now;
  const AttentionPairs* pairs = nullptr;
  int layer = 0;
  std::int64_t samples = 1;
  std::int64_t first_head = 0, heads = 1;  ///< of all heads of the layer

  at::Tensor draw() const;
  struct Range {
    std::int64_t first = 0, count = 0;
  };
  at::Tensor draw(const Range& queries, const Range& keys) const;
};

}  // namespace foresail::runtime
