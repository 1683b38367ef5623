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

// Elements of the matrices between a layer's input and the core of its attention, and behind it.
double projection_elements(const Model& model) {
  const auto h = static_cast<double>(model.hidden);
  const auto q = static_cast<double>(query_width(model));
  const double behind = static_cast<double>(context_width(model)) * h;
  if (!has_latent(model)) {
    return h * (q + static_cast<double>(key_width(model) + value_width(model))) + behind;
  }
  const auto kv_rank = static_cast<double>(model.latent.kv_rank);
  const auto rank = static_cast<double>(model.latent.query_rank);
  const double queries = rank > 0 ? (h + q) * rank : h * q;
  const double keys = h * (kv_rank + static_cast<double>(model.latent.rope_head_size)) +
                      kv_rank * static_cast<double>(latent_up_width(model));
  return queries + keys + behind;
}

// Elements of the matrices that a token meets in the MLPs, or the experts, of all layers.
double mlp_elements(const Model& model) {
  const auto h = static_cast<double>(model.hidden);
  const auto width = [&](std::int64_t ffn) {
    return h * static_cast<double>(fc1_width(model, ffn) + ffn);
  };
  const double with_experts = expert_layers(model);
  const Experts& experts = model.experts;
  const double routed = experts.count * h + experts.per_token * width(experts.ffn);
  const double shared = width(shared_ffn(model)) + (experts.shared_gate ? h : 0);
  return (model.layers - with_experts) * width(model.ffn) + with_experts * (routed + shared);
}

double exact(const Model& model, double tokens, double keys) {
  const double layers = model.layers;
  const double projections = 2 * tokens * projection_elements(model);
  const double attention =
      2 * tokens * keys * static_cast<double>(query_width(model) + context_width(model));
  const double head = 2 * tokens * static_cast<double>(model.hidden * model.vocab);
  return 3 * (layers * (projections + attention) + 2 * tokens * mlp_elements(model) + head);
}

// Elements of the attention's matrices that tp cuts.
std::int64_t cut_attention_elements(const Model& model) {
  const std::int64_t h = model.hidden;
  const std::int64_t q = query_width(model);
  const std::int64_t behind = context_width(model) * h;
  if (!has_latent(model)) return h * (q + key_width(model) + value_width(model)) + behind;
  const std::int64_t rank = model.latent.query_rank > 0 ? model.latent.query_rank : h;
  return rank * q + model.latent.kv_rank * latent_up_width(model) + behind;
}

// Of the down projections, and the norms of what they make, which every tp rank holds.
std::int64_t whole_attention_elements(const Model& model) {
  if (!has_latent(model)) return 0;
  const LatentAttention& latent = model.latent;
  const std::int64_t norms =
      (model.norm == Norm::LayerNorm ? 2 : 1) * (latent.query_rank + latent.kv_rank);
  return model.hidden * (latent.query_rank + latent.kv_rank + latent.rope_head_size) + norms;
}

}  // namespace

std::int64_t attended_pairs(const Model& model, std::int64_t length) {
  const std::int64_t window =
      model.attention == Attention::SlidingWindow ? std::min(model.window, length) : length;
  return window * length - window * (window - 1) / 2;
}

std::int64_t mlp_parameters(const Model& model, std::int64_t ffn) {
  const std::int64_t fc1 = fc1_width(model, ffn);
  return model.hidden * (fc1 + ffn) + (model.biases ? fc1 + model.hidden : 0);
}

ParameterCount count_parameters(const Model& model, std::int64_t sequence_length) {
  const std::int64_t h = model.hidden;
  const std::int64_t norms = layer_norms(model) * norm_parameters(model);
  const std::int64_t mlp = mlp_parameters(model, model.ffn);
  const std::int64_t attention = layer_parameters(model, 1).total() - mlp - norms;
  const std::int64_t with_experts = expert_layers(model);
  ParameterCount count;
  count.attention = model.layers * attention;
  count.mlp = (model.layers - with_experts) * mlp;
  if (with_experts > 0) {
    const RankParameters layer = expert_layer_parameters(model, 1, 1, 1);
    count.experts = with_experts * layer.experts;
    count.shared = with_experts * (layer.total() - attention - norms);
  }
  count.norms = model.layers * norms + norm_parameters(model);
  count.embedding = (model.vocab + position_rows(model, sequence_length)) * h;
  count.head = model.tied_embeddings ? 0 : model.vocab * h;
  count.active = count.total();
  if (with_experts > 0) {
    count.active -=
        count.experts / model.experts.count * (model.experts.count - model.experts.per_token);
  }
  return count;
}

RankParameters layer_parameters(const Model& model, int tp) {
  FORESAIL_EXPECT(tp >= 1);
  FORESAIL_EXPECT(model.heads % tp == 0);
  FORESAIL_EXPECT(model.kv_heads % tp == 0);
  FORESAIL_EXPECT(model.ffn % tp == 0);
  const std::int64_t h = model.hidden;
  const std::int64_t fc1 = fc1_width(model);
  RankParameters count;
  count.sharded = (cut_attention_elements(model) + h * fc1 + model.ffn * h) / tp;
  count.replicated = layer_norms(model) * norm_parameters(model) + whole_attention_elements(model);
  if (model.biases) {
    count.sharded += (query_width(model) + key_width(model) + value_width(model) + fc1) / tp;
    count.replicated += 2 * h;
  }
  return count;
}

RankParameters expert_layer_parameters(const Model& model, int tp, int ep, int expert_tp) {
  const Experts& experts = model.experts;
  FORESAIL_EXPECT(experts.count > 0);
  FORESAIL_EXPECT(experts.count % ep == 0);
  FORESAIL_EXPECT(experts.ffn % expert_tp == 0);
  Model dense = model;  // the shared experts are an MLP, maybe of width 0
  dense.ffn = shared_ffn(model);
  RankParameters count = layer_parameters(dense, tp);
  if (experts.shared == 0 && model.biases) count.replicated -= model.hidden;
  count.replicated += experts.count * model.hidden;  // router
  if (experts.shared_gate) count.replicated += model.hidden;
  const std::int64_t h = model.hidden;
  const std::int64_t fc1 = fc1_width(model, experts.ffn);
  const std::int64_t local = experts.count / ep;
  count.experts = local * (h * fc1 + experts.ffn * h) / expert_tp;
  if (model.biases) count.experts += local * (fc1 / expert_tp + h);
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
  if (is_closed_form && (model.experts.count > 0 || has_latent(model))) {
    throw Error(ErrorCode::InvalidInput,
                fmt::format("model {}: korthikanti_2022 counts neither experts nor latent "
                            "attention; the formula must be exact",
                            model.name));
  }
  return Flops(is_closed_form ? korthikanti(model, tokens, keys) : exact(model, tokens, keys));
}

std::string to_text(const FlopConvention& convention) {
  return fmt::format("{}, {} attention", to_string(convention.formula),
                     convention.causal ? "causal" : "full");
}

}  // namespace foresail::models
