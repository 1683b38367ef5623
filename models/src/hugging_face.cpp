#include "hugging_face.h"

#include <fmt/format.h>

#include <array>

#include "hugging_face_kinds.h"

namespace foresail::models {
namespace {

// Wide enough for every published config; the real bounds stand in model.cpp.
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

int count(const Yaml& node, std::string_view key, int otherwise) {
  const auto value = node.find(key);
  return value ? static_cast<int>(value->as_integer(1, 1'000'000)) : otherwise;
}

bool flag(const Yaml& node, std::string_view key, bool otherwise) {
  const auto value = node.find(key);
  return value ? value->as_bool() : otherwise;
}

bool is_positive(const Yaml& node, std::string_view key, double otherwise) {
  const auto value = node.find(key);
  return (value ? value->as_number() : otherwise) > 0;
}

// gelu in all its approximations, or silu as the gate of a gated MLP.
Activation activation(const Yaml& node, std::string_view key, std::string_view otherwise) {
  const auto value = node.find(key);
  const std::string name = value ? value->as_string() : std::string(otherwise);
  if (name.starts_with("gelu")) return Activation::Gelu;
  if (name == "silu" || name == "swish") return Activation::SwiGlu;
  if (value) value->fail(fmt::format("activation \"{}\" is not one of gelu, silu", name));
  node.fail(fmt::format("activation \"{}\" is not one of gelu, silu", name));
}

void read_window(const Yaml& node, Model& model) {
  const std::int64_t window = integer(node, "sliding_window", 0);
  if (window == 0) return;
  model.attention = Attention::SlidingWindow;
  model.window = window;
}

Model read_gpt2(const Yaml& node) {
  Model model;
  model.layers = count(node, "n_layer");
  model.hidden = integer(node, "n_embd");
  model.heads = count(node, "n_head");
  model.ffn = integer(node, "n_inner", 0);
  model.vocab = integer(node, "vocab_size");
  model.max_positions = integer(node, "n_positions");
  model.activation = activation(node, "activation_function", "gelu_new");
  model.tied_embeddings = flag(node, "tie_word_embeddings", true);
  model.dropout = is_positive(node, "attn_pdrop", 0.1) || is_positive(node, "resid_pdrop", 0.1);
  return model;
}

// With the parallel residual GPT-NeoX normalises twice, once for each branch; our parallel block
// has one norm, so it counts 2 hidden parameters per layer less.
Model read_gpt_neox(const Yaml& node) {
  Model model;
  model.layers = count(node, "num_hidden_layers");
  model.hidden = integer(node, "hidden_size");
  model.heads = count(node, "num_attention_heads");
  model.ffn = integer(node, "intermediate_size");
  model.vocab = integer(node, "vocab_size");
  model.activation = activation(node, "hidden_act", "gelu");
  model.positions = Positions::Rotary;
  model.tied_embeddings = flag(node, "tie_word_embeddings", false);
  model.biases = flag(node, "attention_bias", true);
  model.dropout =
      is_positive(node, "attention_dropout", 0) || is_positive(node, "hidden_dropout", 0);
  model.block = flag(node, "use_parallel_residual", true) ? Block::Parallel : Block::Serial;
  return model;
}

}  // namespace

// Llama and its descendants: RMSNorm, rotary positions, SwiGLU.
Model read_llama(const Yaml& node) {
  Model model;
  model.layers = count(node, "num_hidden_layers");
  model.hidden = integer(node, "hidden_size");
  model.heads = count(node, "num_attention_heads");
  model.kv_heads = count(node, "num_key_value_heads", model.heads);
  model.head_size = integer(node, "head_dim", 0);
  model.ffn = integer(node, "intermediate_size");
  model.vocab = integer(node, "vocab_size");
  model.activation = activation(node, "hidden_act", "silu");
  model.norm = Norm::RmsNorm;
  model.positions = Positions::Rotary;
  model.tied_embeddings = flag(node, "tie_word_embeddings", false);
  model.biases = flag(node, "attention_bias", false);
  if (model.biases != flag(node, "mlp_bias", false)) {
    node.fail(
        "attention_bias and mlp_bias differ: biases in some linear layers only are not "
        "supported");
  }
  model.dropout = is_positive(node, "attention_dropout", 0);
  return model;
}

Model read_mistral(const Yaml& node) {
  Model model = read_llama(node);
  read_window(node, model);
  return model;
}

// Qwen2's biases of the query, key and value projections (some 1e-5 of the parameters) are left
// out: `biases` stands for all linear layers. A window applies to layers from max_window_layers on.
Model read_qwen2(const Yaml& node) {
  Model model = read_llama(node);
  if (!flag(node, "use_sliding_window", false)) return model;
  const std::int64_t first = integer(node, "max_window_layers", 28);
  if (first >= model.layers) return model;
  if (first > 0) {
    node.fail(
        fmt::format("a window from layer {} of {} on: windows in some layers only are not "
                    "supported",
                    first, model.layers));
  }
  read_window(node, model);
  return model;
}

namespace {

Model read_mpt(const Yaml& node) {
  Model model;
  model.layers = count(node, "n_layers");
  model.hidden = integer(node, "d_model");
  model.heads = count(node, "n_heads");
  const auto expansion = node.find("expansion_ratio");
  model.ffn = (expansion ? expansion->as_integer(1, 1000) : 4) * model.hidden;
  model.vocab = integer(node, "vocab_size");
  model.biases = !flag(node, "no_bias", true);
  model.positions = Positions::Alibi;
  if (const auto norm = node.find("norm_type")) {
    if (norm->as_string().find("rms") != std::string::npos) model.norm = Norm::RmsNorm;
  }
  const auto attention = node.find("attn_config");
  if (attention) {
    model.kv_heads = count(*attention, "kv_n_heads", model.heads);
    if (!flag(*attention, "alibi", true)) model.positions = Positions::Learned;
  }
  if (model.positions == Positions::Learned) model.max_positions = integer(node, "max_seq_len");
  model.dropout = is_positive(node, "resid_pdrop", 0) ||
                  (attention && is_positive(*attention, "attn_pdrop", 0));
  return model;
}

struct Kind {
  std::string_view model_type;
  std::string_view architecture;
  Model (*read)(const Yaml&);
};

constexpr auto kKinds = std::to_array<Kind>({{"gpt2", "GPT2LMHeadModel", read_gpt2},
                                             {"gpt_neox", "GPTNeoXForCausalLM", read_gpt_neox},
                                             {"llama", "LlamaForCausalLM", read_llama},
                                             {"mistral", "MistralForCausalLM", read_mistral},
                                             {"mpt", "MPTForCausalLM", read_mpt},
                                             {"qwen2", "Qwen2ForCausalLM", read_qwen2}});
constexpr auto kExpertKinds =
    std::to_array<Kind>({{"deepseek_v2", "DeepseekV2ForCausalLM", read_deepseek},
                         {"deepseek_v3", "DeepseekV3ForCausalLM", read_deepseek},
                         {"mixtral", "MixtralForCausalLM", read_mixtral},
                         {"qwen2_moe", "Qwen2MoeForCausalLM", read_qwen2_moe},
                         {"qwen3_moe", "Qwen3MoeForCausalLM", read_qwen3_moe}});

// "model_type", or what "architectures" names first.
std::string kind_name(const Yaml& node) {
  if (const auto type = node.find("model_type")) return type->as_string();
  const std::vector<Yaml> architectures = node.at("architectures").items();
  if (architectures.empty()) node.at("architectures").fail("names no architecture");
  return architectures.front().as_string();
}

// A kind that is read without experts must have none.
void refuse_experts(const Yaml& node, const std::string& kind) {
  for (const std::string_view key :
       {"num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts"}) {
    const auto experts = node.find(key);
    if (experts && experts->as_integer() > 1) {
      experts->fail(fmt::format(
          "\"{}\" with experts is a mixture of experts that this version cannot read", kind));
    }
  }
}

/// The kind of that name in `kinds`; adds those that it is not to `known`.
template <class Kinds>
const Kind* find_kind(const Kinds& kinds, const std::string& name, std::string& known) {
  for (const Kind& kind : kinds) {
    if (name == kind.model_type || name == kind.architecture) return &kind;
    known += (known.empty() ? "" : ", ") + std::string(kind.model_type);
  }
  return nullptr;
}

}  // namespace

bool is_hugging_face(const Yaml& node) {
  return node.is_map() && (node.find("model_type") || node.find("architectures"));
}

Model read_hugging_face(const Yaml& node) {
  const std::string name = kind_name(node);
  std::string known;
  const Kind* kind = find_kind(kKinds, name, known);
  if (kind != nullptr) refuse_experts(node, name);
  if (kind == nullptr) kind = find_kind(kExpertKinds, name, known);
  if (kind == nullptr) node.fail(fmt::format("model_type \"{}\" is not one of {}", name, known));
  Model model = kind->read(node);
  model.name = kind->model_type;
  const auto path = node.find("_name_or_path");
  if (path && !path->as_string().empty()) model.name = path->as_string();
  return model;
}

}  // namespace foresail::models
