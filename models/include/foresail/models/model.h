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

  friend bool operator==(const Model&, const Model&) = default;
};

/// Refuses impossible shapes (heads not dividing hidden without head_size, kv_heads not dividing
/// heads, window without sliding_window ...); the message names every term.
void check(const Model& model);

/// A mapping in our schema (docs/reference/model.md) or a Hugging Face config.json (recognised by
/// its "model_type" or "architectures" key: gpt2, gpt_neox, llama, mistral, qwen2, mpt ...; other
/// kinds and mixture-of-experts models are refused by name). Throws Error{InvalidInput}.
Model read_model(const Yaml& node);

/// Wherever a model is accepted: a mapping, a path (relative to the file that `node` stands in) or
/// a catalogue name. `search` are the folders of models/catalogue to look in, in order. A mapping
/// with a `base` (path or name) takes that model and replaces what its other keys say; sizes that
/// followed from a replaced one are derived anew.
Model resolve_model(const Yaml& node, const std::vector<std::filesystem::path>& search);

/// Our schema, complete, sorted; read_model(to_document(m)) == m.
Document to_document(const Model& model);

/// Vocabulary rows after padding to a multiple of 128 * tp (Megatron's rule).
std::int64_t padded_vocab(const Model& model, int tp);

/// Parameters of the whole model by part; exact, biases included, vocabulary unpadded.
struct ParameterCount {
  std::int64_t attention = 0;  ///< all layers
  std::int64_t mlp = 0;
  std::int64_t norms = 0;      ///< final norm included
  std::int64_t embedding = 0;  ///< words (once if tied) and positions
  std::int64_t head = 0;       ///< output layer if untied
  std::int64_t total() const { return attention + mlp + norms + embedding + head; }
};
/// `sequence_length` sizes the position table where max_positions is 0.
ParameterCount count_parameters(const Model& model, std::int64_t sequence_length = 0);

/// Which FLOPs count as "model FLOPs". All are 3 x forward, without recomputation.
enum class FlopFormula {
  Korthikanti,  ///< 72 B s L h^2 (1 + s/6h + V/12hL); exact only for gelu, ffn = 4h, no GQA
  Exact         ///< sums the GEMMs and attention of this model's layers; equals Korthikanti's where
                ///< that holds
};
struct FlopConvention {
  FlopFormula formula = FlopFormula::Korthikanti;
  bool causal = false;  ///< count half of the attention matrix (a window's share if sliding)
};
/// Model FLOPs of one step over `samples` sequences of `sequence_length`.
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
