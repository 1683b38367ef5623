#include <fmt/format.h>

#include <system_error>

#include "foresail/base/error.h"
#include "foresail/base/reference.h"
#include "foresail/base/yaml_name.h"
#include "foresail/models/model.h"
#include "hugging_face.h"
#include "read_parts.h"
#include "shape.h"

namespace foresail::models {
namespace {

constexpr std::int64_t kAny = std::int64_t{1} << 40;  // the real bounds stand in model.cpp

std::int64_t integer(const Yaml& node, std::string_view key, std::int64_t otherwise) {
  const auto value = node.find(key);
  return value ? value->as_integer(0, kAny) : otherwise;
}

int small_integer(const Yaml& node, std::string_view key, int otherwise) {
  const auto value = node.find(key);
  return value ? static_cast<int>(value->as_integer(1, 1'000'000)) : otherwise;
}

bool flag(const Yaml& node, std::string_view key, bool otherwise) {
  const auto value = node.find(key);
  return value ? value->as_bool() : otherwise;
}

template <class E>
E choice(const Yaml& node, std::string_view key, E otherwise) {
  const auto value = node.find(key);
  return value ? value->as_choice<E>() : otherwise;
}

void refuse_impossible(const Yaml& node, const Model& model) {
  if (const auto complaint = find_impossible(model)) node.fail(*complaint);
}

// Sizes that follow from others unless given. head_size stays 0 if heads do not divide hidden, so
// that the complaint can name both.
void derive_sizes(Model& model) {
  if (model.kv_heads == 0) model.kv_heads = model.heads;
  if (model.head_size == 0 && model.hidden % model.heads == 0) {
    model.head_size = model.hidden / model.heads;
  }
  if (model.ffn == 0) model.ffn = 4 * model.hidden;
  derive_expert_sizes(model);
}

// What followed from a size, or belonged to a choice, that `node` replaces is derived anew.
void forget_derived(const Yaml& node, Model& model) {
  const bool reshapes = node.find("hidden") || node.find("heads");
  if (reshapes) model.head_size = 0;
  if (reshapes && model.kv_heads == model.heads) model.kv_heads = 0;
  if (node.find("hidden")) model.ffn = 0;
  if (node.find("positions")) model.max_positions = 0;
  if (node.find("attention")) model.window = 0;
}

// Keys of `node` over the values of `model`.
Model read_over(const Yaml& node, Model model) {
  node.allow_only({"base",
                   "name",
                   "layers",
                   "hidden",
                   "heads",
                   "kv_heads",
                   "head_size",
                   "ffn",
                   "vocab",
                   "activation",
                   "norm",
                   "positions",
                   "max_positions",
                   "tied_embeddings",
                   "biases",
                   "dropout",
                   "block",
                   "attention",
                   "window",
                   "experts",
                   "latent_attention"});
  forget_derived(node, model);
  if (const auto name = node.find("name")) model.name = read_name(*name);
  model.layers = small_integer(node, "layers", model.layers);
  model.hidden = integer(node, "hidden", model.hidden);
  model.heads = small_integer(node, "heads", model.heads);
  model.kv_heads = small_integer(node, "kv_heads", model.kv_heads);
  model.head_size = integer(node, "head_size", model.head_size);
  model.ffn = integer(node, "ffn", model.ffn);
  model.vocab = integer(node, "vocab", model.vocab);
  model.activation = choice(node, "activation", model.activation);
  model.norm = choice(node, "norm", model.norm);
  model.positions = choice(node, "positions", model.positions);
  model.max_positions = integer(node, "max_positions", model.max_positions);
  model.tied_embeddings = flag(node, "tied_embeddings", model.tied_embeddings);
  model.biases = flag(node, "biases", model.biases);
  model.dropout = flag(node, "dropout", model.dropout);
  model.block = choice(node, "block", model.block);
  model.attention = choice(node, "attention", model.attention);
  model.window = integer(node, "window", model.window);
  if (const auto experts = node.find("experts")) {
    model.experts = read_experts(*experts, model.experts);
  }
  if (const auto latent = node.find("latent_attention")) {
    model.latent = read_latent(*latent, model.latent);
  }
  derive_sizes(model);
  refuse_impossible(node, model);
  return model;
}

bool is_path(const std::string& text) {
  return text.find('/') != std::string::npos || text.ends_with(".yaml") || text.ends_with(".yml") ||
         text.ends_with(".json");
}

}  // namespace

Model read_model(const Yaml& node) {
  if (is_hugging_face(node)) {
    Model model = read_hugging_face(node);
    derive_sizes(model);
    refuse_impossible(node, model);
    return model;
  }
  if (node.is_map()) {
    for (const std::string_view key : {"layers", "hidden", "heads", "vocab"}) node.at(key);
    if (const auto base = node.find("base")) base->fail("is read only where a catalogue is given");
  }
  Model unnamed;
  unnamed.name = "unnamed";
  return read_over(node, unnamed);
}

Model resolve_model(const Yaml& node, const std::vector<std::filesystem::path>& search) {
  if (node.is_map()) {
    const auto base = node.find("base");
    return base ? read_over(node, resolve_model(*base, search)) : read_model(node);
  }
  const std::string text = node.as_string();
  if (is_path(text)) {
    return read_model(load_referenced(node));
  }
  std::string looked;
  for (const std::filesystem::path& folder : search) {
    const std::filesystem::path file = folder / (text + ".yaml");
    std::error_code unreadable;
    if (std::filesystem::is_regular_file(file, unreadable)) return read_model(Yaml::load(file));
    looked += (looked.empty() ? "" : ", ") + folder.string();
  }
  node.fail(fmt::format("\"{}\" is not a model of the catalogue (looked in: {})", text,
                        looked.empty() ? "no folder" : looked));
}

Document to_document(const Model& model) {
  Document document = {{"name", model.name},
                       {"layers", model.layers},
                       {"hidden", model.hidden},
                       {"heads", model.heads},
                       {"kv_heads", model.kv_heads},
                       {"head_size", model.head_size},
                       {"ffn", model.ffn},
                       {"vocab", model.vocab},
                       {"activation", to_string(model.activation)},
                       {"norm", to_string(model.norm)},
                       {"positions", to_string(model.positions)},
                       {"max_positions", model.max_positions},
                       {"tied_embeddings", model.tied_embeddings},
                       {"biases", model.biases},
                       {"dropout", model.dropout},
                       {"block", to_string(model.block)},
                       {"attention", to_string(model.attention)},
                       {"window", model.window}};
  if (model.experts.count > 0) document["experts"] = to_document(model.experts);
  if (model.latent.kv_rank > 0) document["latent_attention"] = to_document(model.latent);
  return document;
}

}  // namespace foresail::models
