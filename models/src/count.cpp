#include <fmt/format.h>

#include <algorithm>

#include "foresail/base/error.h"
#include "foresail/models/model.h"
#include "foresail/models/operators.h"
#include "shape.h"

namespace foresail::models {
namespace {

// Keys per query, averaged, as the convention counts them. The diagonal counts half, so that the
// full triangle is exactly half of the square.
double counted_keys(const Model& model, double length, const FlopConvention& convention) {
  if (!convention.causal) return length;
  const double window = model.attention == Attention::SlidingWindow
                            ? std::min(static_cast<double>(model.window), length)
                            : length;
  return window - window * window / (2 * length);
}

double korthikanti(const Model& model, double tokens, double keys) {
  const auto h = static_cast<double>(model.hidden);
  const auto layers = static_cast<double>(model.layers);
  const auto vocab = static_cast<double>(model.vocab);
  return 72 * tokens * layers * h * h * (1 + keys / (6 * h) + vocab / (12 * h * layers));
}

double exact(const Model& model, double tokens, double keys) {
  const auto h = static_cast<double>(model.hidden);
  const auto q = static_cast<double>(query_width(model));
  const auto kv = static_cast<double>(kv_width(model));
  const double projections = 2 * tokens * h * (q + 2 * kv) + 2 * tokens * q * h;
  const double attention = 4 * tokens * keys * q;
  const double mlp = 2 * tokens * h * static_cast<double>(fc1_width(model) + model.ffn);
  const double head = 2 * tokens * h * static_cast<double>(model.vocab);
  return 3 * (static_cast<double>(model.layers) * (projections + attention + mlp) + head);
}

}  // namespace

std::int64_t attended_pairs(const Model& model, std::int64_t length) {
  const std::int64_t window =
      model.attention == Attention::SlidingWindow ? std::min(model.window, length) : length;
  return window * length - window * (window - 1) / 2;
}

ParameterCount count_parameters(const Model& model, std::int64_t sequence_length) {
  const RankParameters layer = layer_parameters(model, 1);
  const std::int64_t h = model.hidden;
  ParameterCount count;
  const std::int64_t fc1 = fc1_width(model);
  const std::int64_t mlp = h * fc1 + model.ffn * h + (model.biases ? fc1 + h : 0);
  const std::int64_t norms = layer_norms(model) * norm_parameters(model);
  count.attention = model.layers * (layer.total() - mlp - norms);
  count.mlp = model.layers * mlp;
  count.norms = model.layers * norms + norm_parameters(model);
  count.embedding = (model.vocab + position_rows(model, sequence_length)) * h;
  count.head = model.tied_embeddings ? 0 : model.vocab * h;
  return count;
}

RankParameters layer_parameters(const Model& model, int tp) {
  FORESAIL_EXPECT(tp >= 1);
  FORESAIL_EXPECT(model.heads % tp == 0);
  FORESAIL_EXPECT(model.kv_heads % tp == 0);
  FORESAIL_EXPECT(model.ffn % tp == 0);
  const std::int64_t h = model.hidden;
  const std::int64_t q = query_width(model);
  const std::int64_t qkv = q + 2 * kv_width(model);
  const std::int64_t fc1 = fc1_width(model);
  RankParameters count;
  count.sharded = (h * qkv + q * h + h * fc1 + model.ffn * h) / tp;
  count.replicated = layer_norms(model) * norm_parameters(model);
  if (model.biases) {
    count.sharded += (qkv + fc1) / tp;
    count.replicated += 2 * h;
  }
  return count;
}

RankParameters embedding_parameters(const Model& model, int tp, std::int64_t sequence_length) {
  RankParameters count;
  count.sharded = padded_vocab(model, tp) / tp * model.hidden;
  count.replicated = position_rows(model, sequence_length) * model.hidden;
  return count;
}

RankParameters head_parameters(const Model& model, int tp, bool own_copy) {
  RankParameters count;
  count.replicated = norm_parameters(model);
  if (own_copy || !model.tied_embeddings) {
    count.sharded = padded_vocab(model, tp) / tp * model.hidden;
  }
  return count;
}

Flops model_flops(const Model& model, std::int64_t samples, std::int64_t sequence_length,
                  const FlopConvention& convention) {
  FORESAIL_EXPECT(samples >= 0);
  FORESAIL_EXPECT(sequence_length >= 1);
  const auto length = static_cast<double>(sequence_length);
  const double tokens = static_cast<double>(samples) * length;
  const double keys = counted_keys(model, length, convention);
  const bool is_closed_form = convention.formula == FlopFormula::Korthikanti;
  return Flops(is_closed_form ? korthikanti(model, tokens, keys) : exact(model, tokens, keys));
}

std::string to_text(const FlopConvention& convention) {
  return fmt::format("{}, {} attention", to_string(convention.formula),
                     convention.causal ? "causal" : "full");
}

}  // namespace foresail::models
