#include "foresail/planner/recomputation.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <string_view>

#include "foresail/planner/layout.h"
#include "layout_laws.h"
#include "recompute_order.h"

namespace foresail::planner {
namespace {

using models::Recompute;
using models::RecomputeModules;

constexpr std::int64_t kLayersMax = 1 << 20;

struct Module {
  std::string_view name;
  bool RecomputeModules::*flag;
};
constexpr std::array kModules = {Module{"core_attention", &RecomputeModules::core_attention},
                                 Module{"norm", &RecomputeModules::norm},
                                 Module{"activation", &RecomputeModules::activation},
                                 Module{"mlp", &RecomputeModules::mlp}};

Recomputation read_modules(const Yaml& node) {
  Recomputation made(Recompute::Selective);
  made.modules = {};
  made.modules.core_attention = false;
  for (const Yaml& item : node.items()) {
    const std::string name = item.as_string();
    const auto found = std::ranges::find(kModules, name, &Module::name);
    if (found == kModules.end()) {
      item.fail("\"" + name + "\" is not one of core_attention, norm, activation, mlp");
    }
    if (made.modules.*found->flag) item.fail("stands here twice");
    made.modules.*found->flag = true;
  }
  if (node.items().empty()) node.fail("names no module");
  return made;
}

}  // namespace

Recomputation read_recomputation(const Yaml& node) {
  if (node.is_sequence()) return read_modules(node);
  if (!node.is_map()) return node.as_choice<Recompute>();
  node.allow_only({"method", "layers"});
  Recomputation made(Recompute::Full);
  made.method = node.at("method").as_choice<CheckpointMethod>();
  made.layers = static_cast<int>(node.at("layers").as_integer(1, kLayersMax));
  return made;
}

Document to_document(const Recomputation& recomputation) {
  if (recomputation.is_plain()) return to_string(recomputation.what);
  if (recomputation.what == Recompute::Full) {
    return {{"method", to_string(recomputation.method)}, {"layers", recomputation.layers}};
  }
  Document list = Document::array();
  for (const Module& module : kModules) {
    if (recomputation.modules.*module.flag) list.push_back(module.name);
  }
  return list;
}

std::string to_text(const Recomputation& recomputation) {
  if (recomputation.is_plain()) return std::string(to_string(recomputation.what));
  if (recomputation.what == Recompute::Full) {
    return fmt::format("{} {}", to_string(recomputation.method), recomputation.layers);
  }
  std::string text;
  for (const Module& module : kModules) {
    if (!(recomputation.modules.*module.flag)) continue;
    text += fmt::format("{}{}", text.empty() ? "" : " ", module.name);
  }
  return text;
}

std::vector<BrokenLaw> check_recomputation(const models::Model& model, const Layout& layout) {
  std::vector<BrokenLaw> broken;
  const Recomputation& recompute = layout.recompute;
  if (recompute.what != Recompute::Full) return broken;
  if (recompute.layers < 1) {
    broken.push_back({"recompute_layers_min",
                      fmt::format("recompute layers {}, must be at least 1", recompute.layers)});
    return broken;
  }
  if (recompute.layers > model.layers) {
    broken.push_back({"recompute_layers_max",
                      fmt::format("recompute {} {}, but the model has {} layers",
                                  to_string(recompute.method), recompute.layers, model.layers)});
  }
  const bool is_uniform = recompute.method == CheckpointMethod::Uniform && recompute.layers > 1;
  const bool is_gathered_alone =
      layout.pp == 1 && layout.zero_stage == 3 && std::int64_t{layout.dp} * layout.cp > 1;
  if (is_uniform && is_gathered_alone) {
    broken.push_back({"recompute_uniform_zero",
                      fmt::format("recompute uniform {} runs layers together, but zero_stage 3 "
                                  "with pp 1 gathers each layer by itself: layers must be 1",
                                  recompute.layers)});
  }
  return broken;
}

int recomputed_layers(const Layout& layout, const StagePart& part) {
  const Recomputation& recompute = layout.recompute;
  const int layers = part.end_layer - part.first_layer;
  if (recompute.what != Recompute::Full) return 0;
  if (recompute.method == CheckpointMethod::Uniform) return layers;
  // Without a pipeline the chunks are buckets of gradients, and the model is one chunk.
  const int before = layout.pp == 1 ? part.first_layer : 0;
  return std::clamp(recompute.layers - before, 0, layers);
}

std::vector<BackwardPiece> backward_order(const Layout& layout, const StagePart& part) {
  const Recomputation& recompute = layout.recompute;
  const int layers = part.end_layer - part.first_layer;
  const int again = recomputed_layers(layout, part);
  std::vector<BackwardPiece> order;
  const auto add = [&](BackwardPiece piece, int count) {
    order.insert(order.end(), static_cast<std::size_t>(count), piece);
  };
  if (recompute.what != Recompute::Full) {
    add(BackwardPiece::Layer, layers);
    return order;
  }
  add(BackwardPiece::Kept, layers - again);
  const int group = recompute.method == CheckpointMethod::Uniform ? recompute.layers : 1;
  // The last group is the shorter one, and comes first.
  for (int first = (again - 1) / group * group; again > 0 && first >= 0; first -= group) {
    const int size = std::min(group, again - first);
    if (size == 1) {
      add(BackwardPiece::Layer, 1);
      continue;
    }
    add(BackwardPiece::Again, size - 1);
    add(BackwardPiece::AgainLast, 1);
    add(BackwardPiece::Kept, size);
  }
  return order;
}

}  // namespace foresail::planner
