/// \file
/// What is trained: the shape of a decoder-only transformer.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "foresail/base/document.h"
#include "foresail/base/names.h"
#include "foresail/base/units.h"
#include "foresail/base/yaml.h"

namespace foresail::models {

enum class Activation { Gelu, SwiGlu };
enum class Norm { LayerNorm, RmsNorm };
enum class Positions { Learned, Rotary, Alibi };
/// Serial: x + Mlp(norm(x + Attention(norm(x)))). Parallel (PaLM, MegaScale):
/// x + Attention(norm(x)) + Mlp(norm(x)), one norm.
enum class Block { Serial, Parallel };
enum class Attention { Full, SlidingWindow };

/// A mixture of experts in place of the MLP: a router sends every token to `per_token` of `count`
/// experts (Shazeer et al. 2017; DeepSeekMoE 2024 for shared experts).
struct Experts {
  int count = 0;                ///< routed experts of a layer; 0: the model is dense
  int per_token = 0;            ///< top-k
  std::int64_t ffn = 0;         ///< width of a routed expert; the model's ffn unless given
  int shared = 0;               ///< experts that every token visits besides
  std::int64_t shared_ffn = 0;  ///< width of a shared expert; that of a routed one unless given
  bool shared_gate = false;     ///< a learned scalar per token scales the shared experts' output
  int first_dense_layers = 0;   ///< layers in front that have an MLP instead
  int every = 1;  ///< of the layers behind them the 1st, (1 + every)th ... have experts
  /// 0: dropless. Else each rank sends exactly ceil(factor * tokens * per_token / count) tokens to
  /// every expert: what is above is dropped, what is missing is padded (GShard 2020).
  double capacity_factor = 0;
  /// alpha of the sequence-wise balance loss (DeepSeek-V3 2024, section 2.1.2): over the S tokens
  /// of each sample alpha * sum over experts of f P, f = count / (per_token * S) * (copies that
  /// chose the expert), P the mean of its probability. 0: none.
  double balance_loss = 0;

  friend bool operator==(const Experts&, const Experts&) = default;
};

/// Keys, values and maybe queries are projected down to a latent vector and up again; positions
/// turn a part of the heads alone (DeepSeek-V2 2024, section 2.1). `head_size` of the model is then
/// the part of a query or key that positions leave alone.
struct LatentAttention {
  std::int64_t kv_rank = 0;         ///< width of the latent; 0: ordinary attention
  std::int64_t query_rank = 0;      ///< 0: queries are projected directly
  std::int64_t rope_head_size = 0;  ///< turned part of a query; one such key serves all heads
  std::int64_t value_head_size = 0;

  friend bool operator==(const LatentAttention&, const LatentAttention&) = default;
};

struct Model {
  std::string name;
  int layers = 0;
  std::int64_t hidden = 0;
  int heads = 0;
  int kv_heads = 0;            ///< < heads: grouped-query attention
  std::int64_t head_size = 0;  ///< hidden / heads unless given
  std::int64_t ffn = 0;        ///< 4 hidden unless given
  std::int64_t vocab = 0;      ///< as published; padded by the layout (see padded_vocab)
  Activation activation = Activation::Gelu;
  Norm norm = Norm::LayerNorm;
  Positions positions = Positions::Learned;
  std::int64_t max_positions = 0;  ///< rows of the learned position table; 0: sequence length
  bool tied_embeddings = true;     ///< output layer shares the word embedding
  bool biases = true;              ///< linear layers have biases
  bool dropout = false;            ///< dropout after attention softmax, projection and MLP
  Block block = Block::Serial;
  Attention attention = Attention::Full;
  std::int64_t window = 0;  ///< keys per query, SlidingWindow only
  Experts experts;
  LatentAttention latent;

  friend bool operator==(const Model&, const Model&) = default;
};

/// Refuses impossible shapes (heads not dividing hidden without head_size, kv_heads not dividing
/// heads, window without sliding_window ...); the message names every term.
void check(const Model& model);

/// A mapping in our schema (docs/reference/model.md) or a Hugging Face config.json (recognised by
/// its "model_type" or "architectures" key: gpt2, gpt_neox, llama, mixtral, deepseek_v3 ...; other
/// kinds are refused by name). Throws Error{InvalidInput}.
Model read_model(const Yaml& node);

/// Wherever a model is accepted: a mapping, a path (relative to the file that `node` stands in) or
/// a catalogue name. `search` are the folders of models/catalogue to look in, in order. A mapping
/// with a `base` (path or name) takes that model and replaces what its other keys say; sizes that
/// followed from a replaced one are derived anew.
Model resolve_model(const Yaml& node, const std::vector<std::filesystem::path>& search);

/// Our schema, complete, sorted; read_model(to_document(m)) == m.
Document to_document(const Model& model);

/// Whether layer `layer` (from 0) has experts in place of an MLP.
bool has_experts(const Model& model, int layer);
/// Layers that do.
int expert_layers(const Model& model);

/// Vocabulary rows after padding to a multiple of 128 * tp (Megatron's rule).
std::int64_t padded_vocab(const Model& model, int tp);

/// Parameters of the whole model by part; exact, biases included, vocabulary unpadded.
struct ParameterCount {
  std::int64_t attention = 0;  ///< all layers
  std::int64_t mlp = 0;        ///< of layers without experts
  std::int64_t experts = 0;    ///< routed
  std::int64_t shared = 0;     ///< routers, shared experts and their gates
  std::int64_t norms = 0;      ///< final norm included
  std::int64_t embedding = 0;  ///< words (once if tied) and positions
  std::int64_t head = 0;       ///< output layer if untied
  std::int64_t active = 0;     ///< of the total, what one token meets: per_token of the experts
  std::int64_t total() const {
    return attention + mlp + experts + shared + norms + embedding + head;
  }
};
/// `sequence_length` sizes the position table where max_positions is 0.
ParameterCount count_parameters(const Model& model, std::int64_t sequence_length = 0);

/// Which FLOPs count as "model FLOPs". All are 3 x forward, without recomputation.
enum class FlopFormula {
  Korthikanti,  ///< 72 B s L h^2 (1 + s/6h + V/12hL); exact only for gelu, ffn = 4h, no GQA;
                ///< refused for models with experts or latent attention
  Exact         ///< sums the GEMMs and attention of this model's layers; equals Korthikanti's where
                ///< that holds
};
struct FlopConvention {
  FlopFormula formula = FlopFormula::Korthikanti;
  bool causal = false;  ///< count half of the attention matrix (a window's share if sliding)
};
/// Model FLOPs of one step over `samples` sequences of `sequence_length`: of experts, those that a
/// token visits, none dropped. Throws Error{InvalidInput} if the formula does not fit the model.
Flops model_flops(const Model& model, std::int64_t samples, std::int64_t sequence_length,
                  const FlopConvention& convention);
/// "korthikanti_2022, full attention" - to print beside every MFU.
std::string to_text(const FlopConvention& convention);

}  // namespace foresail::models

namespace foresail {
template <>
inline constexpr auto kNames<models::Activation> = std::to_array<Named<models::Activation>>(
    {{models::Activation::Gelu, "gelu"}, {models::Activation::SwiGlu, "swiglu"}});
template <>
inline constexpr auto kNames<models::Norm> = std::to_array<Named<models::Norm>>(
    {{models::Norm::LayerNorm, "layer_norm"}, {models::Norm::RmsNorm, "rms_norm"}});
template <>
inline constexpr auto kNames<models::Positions> =
    std::to_array<Named<models::Positions>>({{models::Positions::Learned, "learned"},
                                             {models::Positions::Rotary, "rotary"},
                                             {models::Positions::Alibi, "alibi"}});
template <>
inline constexpr auto kNames<models::Block> = std::to_array<Named<models::Block>>(
    {{models::Block::Serial, "serial"}, {models::Block::Parallel, "parallel"}});
template <>
inline constexpr auto kNames<models::Attention> = std::to_array<Named<models::Attention>>(
    {{models::Attention::Full, "full"}, {models::Attention::SlidingWindow, "sliding_window"}});
template <>
inline constexpr auto kNames<models::FlopFormula> = std::to_array<Named<models::FlopFormula>>(
    {{models::FlopFormula::Korthikanti, "korthikanti_2022"},
     {models::FlopFormula::Exact, "exact"}});
}  // namespace foresail
