
#include "foresail/scenarios/rows.h"
#include "foresail/scenarios/scenario.h"

namespace foresail::scenarios {
namespace {

StackDescription read_description(const Yaml& node) {
  node.allow_only({"name", "match", "why", "stack", "interleaving", "layout", "gradient_dtype",
                   "optimizer", "model"});
  StackDescription made;
  made.name = node.at("name").as_string();
  for (const Yaml& word : node.at("match").items()) made.match.push_back(word.as_string());
  made.stack = models::read_stack(node.at("stack"));
  if (const auto value = node.find("interleaving")) made.interleaving = value->as_bool();
  const Yaml layout = node.at("layout");
  layout.allow_only({"sequence_parallel", "zero_stage", "recompute", "overlap"});
  made.sequence_parallel = layout.at("sequence_parallel").as_bool();
  made.zero_stage = static_cast<int>(layout.at("zero_stage").as_integer(0, 3));
  made.recompute = layout.at("recompute").as_choice<models::Recompute>();
  const Yaml overlap = layout.at("overlap");
  overlap.allow_only({"tp", "pp", "dp"});
  made.overlap = {overlap.at("tp").as_bool(), overlap.at("pp").as_bool(),
                  overlap.at("dp").as_bool()};
  made.gradient_dtype = node.at("gradient_dtype").as_choice<DType>();
  if (const auto value = node.find("optimizer")) {
    made.optimizer = value->as_choice<program::Optimizer>();
  }
  if (const auto model = node.find("model")) {
    model->allow_only({"block", "attention", "window"});
    if (const auto value = model->find("block")) made.block = value->as_choice<models::Block>();
    if (const auto value = model->find("window")) made.window = value->as_integer(1, 1 << 24);
  }
  return made;
}

}  // namespace

std::vector<StackDescription> load_stacks() {
  const Yaml root = load_catalogue("stacks.yaml");
  root.allow_only({"stacks"});
  std::vector<StackDescription> stacks;
  for (const Yaml& node : root.at("stacks").items()) stacks.push_back(read_description(node));
  if (stacks.empty() || !stacks.back().match.empty()) {
    root.at("stacks").fail("the last stack must match everything (match: [])");
  }
  return stacks;
}

}  // namespace foresail::scenarios
