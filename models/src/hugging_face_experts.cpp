// Mixtures of experts and latent attention in Hugging Face's configs.
#include <fmt/format.h>

#include "hugging_face_kinds.h"

namespace foresail::models {
namespace {

constexpr std::int64_t kAny = std::int64_t{1} << 40;

std::int64_t integer(const Yaml& node, std::string_view key) {
  return node.at(key).as_integer(1, kAny);
}

std::int64_t integer(const Yaml& node, std::string_view key, std::int64_t otherwise) {
  const auto value = node.find(key);
  return value ? value->as_integer(0, kAny) : otherwise;
}

int count(const Yaml& node, std::string_view key) {
  return static_cast<int>(node.at(key).as_integer(1, 1'000'000));
}

// Experts in every `step`th layer, the first of them the `step`th.
void read_sparse_step(const Yaml& node, Model& model) {
  const auto step = static_cast<int>(integer(node, "decoder_sparse_step", 1));
  if (step < 1) node.at("decoder_sparse_step").fail("must be at least 1");
  model.experts.every = step;
  model.experts.first_dense_layers = step - 1;
  const auto dense = node.find("mlp_only_layers");
  if (dense && !dense->items().empty()) {
    dense->fail("single layers without experts are not supported");
  }
}

}  // namespace

Model read_mixtral(const Yaml& node) {
  Model model = read_mistral(node);
  model.experts.count = count(node, "num_local_experts");
  model.experts.per_token = count(node, "num_experts_per_tok");
  return model;
}

Model read_qwen2_moe(const Yaml& node) {
  Model model = read_qwen2(node);
  model.experts.count = count(node, "num_experts");
  model.experts.per_token = count(node, "num_experts_per_tok");
  model.experts.ffn = integer(node, "moe_intermediate_size");
  model.experts.shared = 1;
  model.experts.shared_ffn = integer(node, "shared_expert_intermediate_size");
  model.experts.shared_gate = true;
  read_sparse_step(node, model);
  return model;
}

// The norms of each head's query and key (2 * head_size parameters per layer) are left out.
Model read_qwen3_moe(const Yaml& node) {
  Model model = read_qwen2(node);
  model.experts.count = count(node, "num_experts");
  model.experts.per_token = count(node, "num_experts_per_tok");
  model.experts.ffn = integer(node, "moe_intermediate_size");
  read_sparse_step(node, model);
  return model;
}

// The extra layers that predict a second token (num_nextn_predict_layers) are left out, and so are
// the routers' bias terms (one per expert, which no gradient reaches).
Model read_deepseek(const Yaml& node) {
  Model model = read_llama(node);
  model.kv_heads = model.heads;
  model.head_size = integer(node, "qk_nope_head_dim");
  model.latent.kv_rank = integer(node, "kv_lora_rank");
  model.latent.query_rank = integer(node, "q_lora_rank", 0);
  model.latent.rope_head_size = integer(node, "qk_rope_head_dim");
  model.latent.value_head_size = integer(node, "v_head_dim");
  if (!node.find("n_routed_experts")) return model;
  model.experts.count = count(node, "n_routed_experts");
  model.experts.per_token = count(node, "num_experts_per_tok");
  model.experts.ffn = integer(node, "moe_intermediate_size");
  model.experts.shared = static_cast<int>(integer(node, "n_shared_experts", 0));
  if (model.experts.shared > 0) model.experts.shared_ffn = model.experts.ffn;
  const auto step = static_cast<int>(integer(node, "moe_layer_freq", 1));
  if (step < 1) node.at("moe_layer_freq").fail("must be at least 1");
  const auto dense = static_cast<int>(integer(node, "first_k_dense_replace", 0));
  // Experts where the layer's number is a multiple of the step, from `dense` on.
  model.experts.every = step;
  model.experts.first_dense_layers = (dense + step - 1) / step * step;
  return model;
}

}  // namespace foresail::models
