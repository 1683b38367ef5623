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
  const bool has_copies = std::int64_t{layout.dp} * layout.cp > 1 ||
                          (model.experts.count > 0 && layout.expert_dp() > 1);
  const bool is_gathered_alone = layout.pp == 1 && layout.zero_stage == 3 && has_copies;
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
  using Kind = BackwardPiece::Kind;
  const Recomputation& recompute = layout.recompute;
  std::vector<BackwardPiece> order;
  const auto add_back = [&](Kind kind, int first, int end) {
    for (int layer = end - 1; layer >= first; --layer) order.push_back({kind, layer});
  };
  if (recompute.what != Recompute::Full) {
    add_back(Kind::Layer, part.first_layer, part.end_layer);
    return order;
  }
  const int again = recomputed_layers(layout, part);
  const int end = part.first_layer + again;
  add_back(Kind::Kept, end, part.end_layer);
  const int group = recompute.method == CheckpointMethod::Uniform ? recompute.layers : 1;
  // The last group is the shorter one, and comes first.
  const int last = part.first_layer + (again - 1) / group * group;
  for (int first = last; again > 0 && first >= part.first_layer; first -= group) {
    const int behind = std::min(first + group, end);
    if (behind - first == 1) {
      order.push_back({Kind::Layer, first});
      continue;
    }
    for (int layer = first; layer + 1 < behind; ++layer) order.push_back({Kind::Again, layer});
    order.push_back({Kind::AgainLast, behind - 1});
    add_back(Kind::Kept, first, behind);
  }
  return order;
}

}  // namespace foresail::planner
