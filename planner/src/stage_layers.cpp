#include "foresail/planner/stage_layers.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdint>
#include <numeric>

#include "foresail/base/error.h"
#include "foresail/planner/layout.h"
#include "layout_laws.h"

namespace foresail::planner {
namespace {

constexpr std::int64_t kLayersMax = 1 << 20;

bool is_on(const Yaml& node, std::string_view key) {
  const auto value = node.find(key);
  return value && value->as_bool();
}

int layers_at(const Yaml& node, std::string_view key) {
  const auto value = node.find(key);
  return value ? static_cast<int>(value->as_integer(1, kLayersMax)) : 0;
}

/// Where an even split would be, embedding and loss counted as one layer each if they are to be.
std::int64_t counted_layers(const StageLayers& stages, const models::Model& model) {
  return std::int64_t{model.layers} + (stages.account_for_embedding ? 1 : 0) +
         (stages.account_for_loss ? 1 : 0);
}

/// Stages along the model and chunks of each that follow one another.
struct Cut {
  int stages = 1, chunks = 1;
  std::string text;
};

Cut cut_of(const Layout& layout) {
  // Mirrored chunks are copies: the model is cut once per stage.
  if (layout.stage_map() == program::StageMap::Mirrored) {
    return {layout.pp, 1, fmt::format("pp {}", layout.pp)};
  }
  return {layout.pp, layout.v, fmt::format("(pp {} * v {})", layout.pp, layout.v)};
}

class StageLaws {
 public:
  StageLaws(const models::Model& model, const Layout& layout)
      : model_(model), layout_(layout), stages_(layout.stages), cut_(cut_of(layout)) {}

  std::vector<BrokenLaw> check() {
    if (!stages_.is_even() && layout_.pp == 1) {
      add("stages_need_pp", fmt::format("stages {} need pp > 1, but pp is 1", to_text(stages_)));
      return broken_;
    }
    const bool has_ends = stages_.first > 0 || stages_.last > 0;
    const bool accounts = stages_.account_for_embedding || stages_.account_for_loss;
    if (!stages_.each.empty()) {
      check_list();
    } else if (has_ends && accounts) {
      add("stages_one_form",
          fmt::format("stages {}: either the layers of the first and last stage are given, or "
                      "embedding and loss count as layers",
                      to_text(stages_)));
    } else if (has_ends) {
      check_ends();
    } else {
      check_even();
    }
    return broken_;
  }

 private:
  void add(std::string name, std::string message) {
    broken_.push_back({std::move(name), std::move(message)});
  }

  void check_list() {
    const std::vector<int>& each = stages_.each;
    if (std::int64_t{cut_.stages} * cut_.chunks != static_cast<std::int64_t>(each.size())) {
      add("stages_count", fmt::format("stages has {} entries, must have {} = {}", each.size(),
                                      cut_.text, std::int64_t{cut_.stages} * cut_.chunks));
    }
    for (std::size_t at = 0; at < each.size(); ++at) {
      const bool is_end = at == 0 || at + 1 == each.size();
      if (each[at] < (is_end ? 0 : 1)) {
        add("stages_min", fmt::format("stages[{}] = {}, must be at least {}{}", at, each[at],
                                      is_end ? 0 : 1, is_end ? "" : " between the ends"));
      }
    }
    const std::int64_t sum = std::accumulate(each.begin(), each.end(), std::int64_t{0});
    if (sum != model_.layers) {
      add("stages_sum", fmt::format("stages {} = {}, but the model has {} layers",
                                    fmt::join(each, " + "), sum, model_.layers));
    }
  }

  void check_even() {
    const std::int64_t parts = std::int64_t{cut_.stages} * cut_.chunks;
    const std::int64_t layers = counted_layers(stages_, model_);
    if (layers % parts == 0) return;
    std::string text = fmt::format("layers {}", model_.layers);
    if (layers != model_.layers) {
      text = fmt::format("(layers {}{}{}) {}", model_.layers,
                         stages_.account_for_embedding ? " + embedding 1" : "",
                         stages_.account_for_loss ? " + loss 1" : "", layers);
    }
    add("layers_by_stages",
        fmt::format("{} % {} = {}, must be 0", text, cut_.text, layers % parts));
  }

  void check_ends() {
    const int given = (stages_.first > 0 ? 1 : 0) + (stages_.last > 0 ? 1 : 0);
    const std::int64_t others = cut_.stages - given;
    const std::int64_t rest = std::int64_t{model_.layers} - stages_.first - stages_.last;
    const std::string left = fmt::format(
        "layers {}{}{} = {}", model_.layers,
        stages_.first > 0 ? fmt::format(" - first_stage_layers {}", stages_.first) : "",
        stages_.last > 0 ? fmt::format(" - last_stage_layers {}", stages_.last) : "", rest);
    if (others == 0 ? rest != 0 : rest < others * cut_.chunks) {
      add("middle_layers", others == 0
                               ? fmt::format("{}, must be 0 with pp {}", left, cut_.stages)
                               : fmt::format("{}, must be at least 1 for each of the {} chunks of "
                                             "the other stages",
                                             left, others * cut_.chunks));
    } else if (others > 0 && rest % (others * cut_.chunks) != 0) {
      add("middle_layers_by_stages",
          fmt::format("{}, % ({} stages * {} chunks) = {}, must be 0", left, others, cut_.chunks,
                      rest % (others * cut_.chunks)));
    }
    for (const auto& [name, layers] : {std::pair{"first", stages_.first}, {"last", stages_.last}}) {
      if (layers % cut_.chunks == 0) continue;
      add("stage_layers_by_v", fmt::format("{}_stage_layers {} % v {} = {}, must be 0", name,
                                           layers, cut_.chunks, layers % cut_.chunks));
    }
  }

  const models::Model& model_;
  const Layout& layout_;
  const StageLayers& stages_;
  Cut cut_;
  std::vector<BrokenLaw> broken_;
};

}  // namespace

StageLayers read_stage_layers(const Yaml& node) {
  StageLayers made;
  if (node.is_sequence()) {
    for (const Yaml& item : node.items()) {
      made.each.push_back(static_cast<int>(item.as_integer(0, kLayersMax)));
    }
    if (made.each.empty()) node.fail("names no stage");
    return made;
  }
  if (node.is_map()) {
    node.allow_only(
        {"first_stage_layers", "last_stage_layers", "account_for_embedding", "account_for_loss"});
    made.first = layers_at(node, "first_stage_layers");
    made.last = layers_at(node, "last_stage_layers");
    made.account_for_embedding = is_on(node, "account_for_embedding");
    made.account_for_loss = is_on(node, "account_for_loss");
    return made;
  }
  const std::string name = node.as_string();
  const bool is_both = name == "account_for_both";
  made.account_for_embedding = is_both || name == "account_for_embedding";
  made.account_for_loss = is_both || name == "account_for_loss";
  if (made.is_even() && name != "even") {
    node.fail("\"" + name +
              "\" is not one of even, account_for_embedding, account_for_loss, account_for_both, "
              "nor a list or a mapping");
  }
  return made;
}

Document to_document(const StageLayers& layers) {
  if (!layers.each.empty()) return layers.each;
  if (layers.is_even()) return "even";
  Document made = Document::object();
  if (layers.first > 0) made["first_stage_layers"] = layers.first;
  if (layers.last > 0) made["last_stage_layers"] = layers.last;
  if (layers.account_for_embedding) made["account_for_embedding"] = true;
  if (layers.account_for_loss) made["account_for_loss"] = true;
  return made;
}

std::string to_text(const StageLayers& layers) {
  if (!layers.each.empty()) return fmt::format("[{}]", fmt::join(layers.each, ", "));
  std::string text;
  const auto add = [&](const std::string& word) { text += text.empty() ? word : " " + word; };
  if (layers.first > 0) add(fmt::format("first_stage_layers {}", layers.first));
  if (layers.last > 0) add(fmt::format("last_stage_layers {}", layers.last));
  if (layers.account_for_embedding) add("account_for_embedding");
  if (layers.account_for_loss) add("account_for_loss");
  return text.empty() ? "even" : text;
}

std::vector<BrokenLaw> check_stage_layers(const models::Model& model, const Layout& layout) {
  return StageLaws(model, layout).check();
}

int layers_of(const models::Model& model, const Layout& layout, int global_stage) {
  const StageLayers& stages = layout.stages;
  const auto at = static_cast<std::size_t>(global_stage);
  if (!stages.each.empty()) return stages.each.at(at);
  const Cut cut = cut_of(layout);
  const int parts = cut.stages * cut.chunks;
  if (stages.first == 0 && stages.last == 0) {
    int layers = static_cast<int>(counted_layers(stages, model)) / parts;
    if (global_stage == 0 && stages.account_for_embedding) --layers;
    if (global_stage == parts - 1 && stages.account_for_loss) --layers;
    return layers;
  }
  // The stage that holds it: chunks follow one another in a ring, or back and forth in a V.
  const int along = global_stage % cut.stages;
  const bool runs_back =
      layout.stage_map() == program::StageMap::V && (global_stage / cut.stages) % 2 == 1;
  const int stage = runs_back ? cut.stages - 1 - along : along;
  if (stage == 0 && stages.first > 0) return stages.first / cut.chunks;
  if (stage == cut.stages - 1 && stages.last > 0) return stages.last / cut.chunks;
  const int given = (stages.first > 0 ? 1 : 0) + (stages.last > 0 ? 1 : 0);
  return (model.layers - stages.first - stages.last) / ((cut.stages - given) * cut.chunks);
}

}  // namespace foresail::planner
