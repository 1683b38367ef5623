#include "foresail/models/model.h"

#include <fmt/format.h>

#include <optional>

#include "foresail/base/error.h"
#include "shape.h"

namespace foresail::models {
namespace {

// Bounds that keep every product below 2^63; published models are far inside them.
constexpr std::int64_t kLayersMax = 10'000;
constexpr std::int64_t kHiddenMax = 1 << 20;
constexpr std::int64_t kHeadsMax = 4096;
constexpr std::int64_t kHeadSizeMax = 1 << 14;
constexpr std::int64_t kFfnMax = 1 << 22;
constexpr std::int64_t kVocabMax = 1 << 24;
constexpr std::int64_t kPositionsMax = 1 << 28;

struct Bound {
  const char* name;
  std::int64_t value;
  std::int64_t low;
  std::int64_t high;
};

std::optional<std::string> find_out_of_bounds(const Model& model) {
  const Bound bounds[] = {{"layers", model.layers, 1, kLayersMax},
                          {"hidden", model.hidden, 1, kHiddenMax},
                          {"heads", model.heads, 1, kHeadsMax},
                          {"kv_heads", model.kv_heads, 1, kHeadsMax},
                          {"head_size", model.head_size, 1, kHeadSizeMax},
                          {"ffn", model.ffn, 1, kFfnMax},
                          {"vocab", model.vocab, 1, kVocabMax},
                          {"max_positions", model.max_positions, 0, kPositionsMax},
                          {"window", model.window, 0, kPositionsMax}};
  for (const Bound& bound : bounds) {
    if (bound.value < bound.low || bound.value > bound.high) {
      return fmt::format("{} {} is not between {} and {}", bound.name, bound.value, bound.low,
                         bound.high);
    }
  }
  return std::nullopt;
}

}  // namespace

std::optional<std::string> find_impossible(const Model& model) {
  if (model.head_size == 0 && model.heads > 0 && model.hidden % model.heads != 0) {
    return fmt::format("hidden {} % heads {} = {}, must be 0 unless head_size is given",
                       model.hidden, model.heads, model.hidden % model.heads);
  }
  if (auto complaint = find_out_of_bounds(model)) return complaint;
  if (auto complaint = find_impossible_experts(model)) return complaint;
  if (auto complaint = find_impossible_latent(model)) return complaint;
  if (model.heads % model.kv_heads != 0) {
    return fmt::format("heads {} % kv_heads {} = {}, must be 0", model.heads, model.kv_heads,
                       model.heads % model.kv_heads);
  }
  if (model.attention == Attention::SlidingWindow && model.window == 0) {
    return "attention sliding_window needs a window of at least 1 key, but window is 0";
  }
  if (model.attention == Attention::Full && model.window != 0) {
    return fmt::format("window {} has no effect with attention full", model.window);
  }
  if (model.positions == Positions::Rotary && model.head_size % 2 != 0) {
    return fmt::format("head_size {} is odd, but rotary positions turn pairs", model.head_size);
  }
  if (model.positions != Positions::Learned && model.max_positions != 0) {
    return fmt::format("max_positions {} has no effect with positions {}", model.max_positions,
                       to_string(model.positions));
  }
  return std::nullopt;
}

void check(const Model& model) {
  if (const auto complaint = find_impossible(model)) {
    throw Error(ErrorCode::InvalidInput, fmt::format("model {}: {}", model.name, *complaint));
  }
}

std::int64_t padded_vocab(const Model& model, int tp) {
  FORESAIL_EXPECT(tp >= 1);
  const std::int64_t multiple = 128 * std::int64_t{tp};
  return (model.vocab + multiple - 1) / multiple * multiple;
}

std::int64_t position_rows(const Model& model, std::int64_t sequence_length) {
  if (model.positions != Positions::Learned) return 0;
  return model.max_positions > 0 ? model.max_positions : sequence_length;
}

}  // namespace foresail::models
