#include "foresail/runtime/weights.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <fstream>

#include "dropout.h"
#include "foresail/base/error.h"
#include "weight_map.h"

namespace foresail::runtime {
namespace {

// What the runtime's kernels compute with; a file's config.json must say the same.
constexpr double kNormEpsilon = 1e-5;
constexpr double kRotaryBase = 10000;

/// The keys of the model that keep it from being this architecture.
std::vector<std::string> misfits(const models::Model& model, Architecture architecture) {
  const bool is_gpt2 = architecture == Architecture::Gpt2;
  std::vector<std::string> keys;
  const auto demand = [&](bool fits, std::string_view key) {
    if (!fits) keys.emplace_back(key);
  };
  demand(model.positions == (is_gpt2 ? models::Positions::Learned : models::Positions::Rotary),
         "positions");
  demand(model.norm == (is_gpt2 ? models::Norm::LayerNorm : models::Norm::RmsNorm), "norm");
  demand(model.activation == (is_gpt2 ? models::Activation::Gelu : models::Activation::SwiGlu),
         "activation");
  demand(model.biases == is_gpt2, "biases");
  demand(!is_gpt2 || model.kv_heads == model.heads, "kv_heads");
  demand(!is_gpt2 || model.heads * model.head_size == model.hidden, "head_size");
  demand(model.block == models::Block::Serial, "block");
  demand(model.attention == models::Attention::Full, "attention");
  demand(model.experts.count == 0, "experts");
  demand(model.latent.kv_rank == 0, "latent_attention");
  return keys;
}

std::string shape_text(const std::vector<std::int64_t>& shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

/// Files of GPT2Model lack the prefix that those of GPT2LMHeadModel have.
const StoredTensor* find(const Safetensors& file, const std::string& name) {
  auto found = file.tensors().find(name);
  if (found == file.tensors().end() && name.starts_with("transformer.")) {
    found = file.tensors().find(name.substr(name.find('.') + 1));
  }
  return found == file.tensors().end() ? nullptr : &found->second;
}

/// Masks and frequencies that older files carry, and the output layer of a tied model.
bool is_ignored(const std::string& name, const models::Model& model) {
  return name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias") ||
         name.ends_with(".rotary_emb.inv_freq") ||
         (model.tied_embeddings && name == "lm_head.weight");
}

}  // namespace

Architecture architecture_of(const models::Model& model) {
  const auto gpt2 = misfits(model, Architecture::Gpt2);
  if (gpt2.empty()) return Architecture::Gpt2;
  const auto llama = misfits(model, Architecture::Llama);
  if (llama.empty()) return Architecture::Llama;
  throw Error(
      ErrorCode::Unsupported,
      fmt::format("weights: no architecture of Hugging Face fits the model: GPT-2 differs in "
                  "{}, Llama in {}",
                  fmt::join(gpt2, ", "), fmt::join(llama, ", ")));
}

Document hugging_face_config(const models::Model& model, std::int64_t sequence_length) {
  const std::int64_t positions = model.max_positions > 0 ? model.max_positions : sequence_length;
  const double dropout = model.dropout ? kDropoutRate : 0;
  if (architecture_of(model) == Architecture::Gpt2) {
    return {{"architectures", {"GPT2LMHeadModel"}},
            {"model_type", "gpt2"},
            {"n_layer", model.layers},
            {"n_head", model.heads},
            {"n_embd", model.hidden},
            {"n_inner", model.ffn},
            {"n_positions", positions},
            {"vocab_size", model.vocab},
            {"activation_function", "gelu_new"},
            {"layer_norm_epsilon", kNormEpsilon},
            {"attn_pdrop", dropout},
            {"embd_pdrop", dropout},
            {"resid_pdrop", dropout},
            {"tie_word_embeddings", model.tied_embeddings},
            {"torch_dtype", "float32"}};
  }
  return {{"architectures", {"LlamaForCausalLM"}},
          {"model_type", "llama"},
          {"num_hidden_layers", model.layers},
          {"num_attention_heads", model.heads},
          {"num_key_value_heads", model.kv_heads},
          {"hidden_size", model.hidden},
          {"head_dim", model.head_size},
          {"intermediate_size", model.ffn},
          {"max_position_embeddings", positions},
          {"vocab_size", model.vocab},
          {"hidden_act", "silu"},
          {"rms_norm_eps", kNormEpsilon},
          {"rope_theta", kRotaryBase},
          {"attention_bias", false},
          {"mlp_bias", false},
          {"attention_dropout", dropout},
          {"tie_word_embeddings", model.tied_embeddings},
          {"torch_dtype", "float32"}};
}

void create_weights(const std::filesystem::path& path, const models::Model& model,
                    std::int64_t sequence_length) {
  const SafetensorsHead head = make_head(tensor_list(model, sequence_length));
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file << head.bytes;
  file.close();
  std::error_code problem;
  if (file) {
    std::filesystem::resize_file(path, static_cast<std::uintmax_t>(head.file_bytes), problem);
  }
  if (!file || problem) {
    throw Error(ErrorCode::Io, fmt::format("{}: cannot write {} bytes of weights", path.string(),
                                           head.file_bytes));
  }
}

void check_weights(const std::filesystem::path& path, const models::Model& model,
                   std::int64_t sequence_length) {
  const auto wanted = tensor_list(model, sequence_length);
  const Safetensors file(path);
  const auto fail = [&](const std::string& what) {
    throw Error(ErrorCode::InvalidInput, path.string() + ": " + what);
  };
  for (const auto& [name, shape] : wanted) {
    const StoredTensor* tensor = find(file, name);
    if (tensor == nullptr) fail(name + " is missing");
    if (tensor->shape != shape) {
      fail(fmt::format("{} is {}, but the model's is {}", name, shape_text(tensor->shape),
                       shape_text(shape)));
    }
  }
  for (const auto& [name, tensor] : file.tensors()) {
    const bool is_known = std::ranges::any_of(wanted, [&, &its = name](const auto& entry) {
      return entry.first == its || entry.first == "transformer." + its;
    });
    if (!is_known && !is_ignored(name, model)) fail(name + " is no tensor of the model");
  }
}

}  // namespace foresail::runtime
