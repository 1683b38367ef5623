#include "read_parts.h"

namespace foresail::models {
namespace {

constexpr std::int64_t kAny =
    1'000'000'000;  // the real bounds stand in expert_shape.cpp, latent.cpp

template <class T>
void integer(const Yaml& node, std::string_view key, T& value) {
  if (const auto given = node.find(key)) value = static_cast<T>(given->as_integer(0, kAny));
}

}  // namespace

Experts read_experts(const Yaml& node, Experts experts) {
  node.allow_only({"count", "per_token", "ffn", "shared", "shared_ffn", "shared_gate",
                   "first_dense_layers", "every", "capacity_factor", "balance_loss"});
  if (experts.count == 0) {
    for (const std::string_view key : {"count", "per_token"}) node.at(key);
  }
  integer(node, "count", experts.count);
  integer(node, "per_token", experts.per_token);
  integer(node, "ffn", experts.ffn);
  integer(node, "shared", experts.shared);
  if (experts.shared == 0) experts.shared_ffn = 0;
  integer(node, "shared_ffn", experts.shared_ffn);
  integer(node, "first_dense_layers", experts.first_dense_layers);
  integer(node, "every", experts.every);
  if (const auto gate = node.find("shared_gate")) experts.shared_gate = gate->as_bool();
  if (const auto factor = node.find("capacity_factor")) {
    experts.capacity_factor = factor->as_number();
  }
  if (const auto loss = node.find("balance_loss")) experts.balance_loss = loss->as_number();
  return experts;
}

LatentAttention read_latent(const Yaml& node, LatentAttention latent) {
  node.allow_only({"kv_rank", "query_rank", "rope_head_size", "value_head_size"});
  if (latent.kv_rank == 0) {
    for (const std::string_view key : {"kv_rank", "rope_head_size"}) node.at(key);
  }
  integer(node, "kv_rank", latent.kv_rank);
  integer(node, "query_rank", latent.query_rank);
  integer(node, "rope_head_size", latent.rope_head_size);
  integer(node, "value_head_size", latent.value_head_size);
  return latent;
}

void derive_expert_sizes(Model& model) {
  Experts& experts = model.experts;
  if (experts.count > 0 && experts.ffn == 0) experts.ffn = model.ffn;
  if (experts.shared > 0 && experts.shared_ffn == 0) experts.shared_ffn = experts.ffn;
  LatentAttention& latent = model.latent;
  if (latent.kv_rank > 0 && latent.value_head_size == 0) latent.value_head_size = model.head_size;
}

Document to_document(const Experts& experts) {
  Document document{{"count", experts.count},
                    {"per_token", experts.per_token},
                    {"ffn", experts.ffn},
                    {"shared", experts.shared},
                    {"shared_ffn", experts.shared_ffn},
                    {"shared_gate", experts.shared_gate},
                    {"first_dense_layers", experts.first_dense_layers},
                    {"every", experts.every},
                    {"capacity_factor", experts.capacity_factor}};
  // Left out where there is none, so that digests of Plans without it stay what they were.
  if (experts.balance_loss > 0) document["balance_loss"] = experts.balance_loss;
  return document;
}

Document to_document(const LatentAttention& latent) {
  return {{"kv_rank", latent.kv_rank},
          {"query_rank", latent.query_rank},
          {"rope_head_size", latent.rope_head_size},
          {"value_head_size", latent.value_head_size}};
}

}  // namespace foresail::models
