#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>

#include "foresail/base/error.h"
#include "foresail/scenarios/predict.h"
#include "foresail/scenarios/rows.h"
#include "foresail/scenarios/scenario.h"

namespace foresail::scenarios {
namespace {

using models::Model;
using planner::Layout;
using planner::Plan;

constexpr std::int64_t kDefaultVocab = 51200;
constexpr std::array<std::int64_t, 4> kMicrobatchSizes = {1, 2, 4, 8};
// Choices within a thousandth of the fastest are ties: the first, smallest one is kept.
constexpr std::int64_t kTie = 1000;

std::string lower_case(std::string text) {
  for (char& c : text) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return text;
}

bool contains(const std::string& text, std::string_view word) {
  return text.find(word) != std::string::npos;
}

const StackDescription& describe_stack(const Row& row,
                                       const std::vector<StackDescription>& stacks) {
  const std::string text = lower_case(row.source + " " + row.framework + " " + row.id);
  for (const StackDescription& stack : stacks) {
    if (std::ranges::all_of(stack.match, [&](const auto& word) { return contains(text, word); })) {
      return stack;
    }
  }
  FORESAIL_EXPECT(false && "the last stack matches everything");
  return stacks.back();
}

// "llama3-70b" -> "llama3_70b", "bloom-search 181B" -> "bloom_search_181b".
std::string catalogue_name(const std::string& name) {
  std::string made = lower_case(name);
  std::ranges::replace(made, '-', '_');
  std::ranges::replace(made, ' ', '_');
  return made;
}

Model family_model(const Row& row, std::vector<std::string>& assumed) {
  const std::string name = catalogue_name(row.model_name);
  for (const auto& folder : data_folders().models) {
    const auto path = folder / (name + ".yaml");
    if (!name.empty() && std::filesystem::exists(path)) {
      return models::read_model(Yaml::load(path));
    }
  }
  Model model;
  model.name = row.model_name.empty() ? "unnamed" : row.model_name;
  if (row.is_gated) {
    model.activation = models::Activation::SwiGlu;
    model.norm = models::Norm::RmsNorm;
    model.positions = models::Positions::Rotary;
    model.tied_embeddings = model.biases = false;
    assumed.emplace_back("llama-like block (gated_mlp)");
  } else {
    model.dropout = true;
    assumed.emplace_back("gpt-like block with dropout");
  }
  return model;
}

Model row_model(const Row& row, const StackDescription& stack, std::vector<std::string>& assumed) {
  Model model = family_model(row, assumed);
  model.layers = static_cast<int>(*row.layers);
  model.hidden = *row.hidden;
  model.heads = static_cast<int>(*row.heads);
  model.kv_heads = static_cast<int>(row.kv_heads.value_or(*row.heads));
  model.head_size = model.hidden / model.heads;
  model.ffn = row.ffn.value_or(4 * model.hidden);
  if (!row.vocab) assumed.push_back(fmt::format("vocabulary {}", kDefaultVocab));
  model.vocab = row.vocab.value_or(kDefaultVocab);
  if (model.max_positions > 0) model.max_positions = std::max(model.max_positions, row.sequence);
  if (stack.block) model.block = *stack.block;
  if (stack.window) {
    model.attention = models::Attention::SlidingWindow;
    model.window = *stack.window;
    assumed.push_back(fmt::format("window {}", *stack.window));
  }
  return model;
}

std::string cluster_template(const Row& row, std::vector<std::string>& assumed) {
  const std::string gpu = lower_case(row.gpu);
  const std::string nics = lower_case(row.nics);
  if (contains(gpu, "a100")) {
    if (contains(lower_case(row.fabric), "selene") || contains(nics, "8x200g hdr ib")) {
      return "selene";
    }
    if (contains(nics, "omni-path")) return "jeanzay_like";
    if (contains(nics, "1600 gb/s")) return "dgx_a100_roce8";
    if (contains(nics, "8x200g roce")) return "megascale";
    const bool is_csv = row.nics.empty() && row.source.starts_with("measured_a100");
    const char* chosen = is_csv ? "dgx_a100_roce4" : "selene";
    assumed.push_back(fmt::format("network of {}", chosen));
    return chosen;
  }
  for (const auto& [word, name] : {std::pair{"gb200", "gb200_nvl72"}, std::pair{"b200", "dgx_b200"},
                                   std::pair{"h800", "h800_multi_plane"},
                                   std::pair{"h200", "dgx_h200"}, std::pair{"h100", "dgx_h100"}}) {
    if (!contains(gpu, word)) continue;
    if (row.nics.empty()) assumed.push_back(fmt::format("network of {}", name));
    return name;
  }
  return {};
}

std::optional<DType> row_precision(const Row& row, std::vector<std::string>& assumed) {
  if (!row.precision) {
    assumed.emplace_back("bf16");
    return DType::Bf16;
  }
  const std::string text = lower_case(*row.precision);
  if (contains(text, "fp8")) return DType::Fp8;
  if (contains(text, "bf16")) return DType::Bf16;
  if (text == "fp16" || text == "16-bit") return DType::Fp16;
  if (contains(text, "fp32")) return DType::Fp32;
  return std::nullopt;
}

models::Recompute row_recompute(const Row& row, const StackDescription& stack,
                                std::vector<std::string>& assumed) {
  if (!row.recompute) {
    assumed.push_back(fmt::format("recompute {}", to_string(stack.recompute)));
    return stack.recompute;
  }
  const std::string text = lower_case(*row.recompute);
  if (text.starts_with("full")) return models::Recompute::Full;
  if (text.starts_with("selective")) return models::Recompute::Selective;
  return models::Recompute::None;
}

Layout row_layout(const Row& row, const StackDescription& stack,
                  std::vector<std::string>& assumed) {
  Layout layout;
  layout.tp = static_cast<int>(row.tp);
  layout.cp = static_cast<int>(row.cp);
  layout.ep = static_cast<int>(row.ep);
  layout.pp = static_cast<int>(row.pp);
  layout.dp = static_cast<int>(row.dp);
  layout.zero_stage = static_cast<int>(row.zero_stage.value_or(stack.zero_stage));
  const std::int64_t model_parallel = row.tp * row.cp * row.pp;
  if (model_parallel > 0 && row.dp * model_parallel < row.gpus &&
      row.gpus % (row.dp * model_parallel) == 0) {
    // Hybrid sharding: groups of dp ranks shard, the groups replicate.
    layout.dp = static_cast<int>(row.gpus / model_parallel);
    if (layout.zero_stage > 0) layout.shard_size = static_cast<int>(row.dp * row.cp);
    assumed.push_back(fmt::format("dp {} in {} groups of {}{}", layout.dp, layout.dp / row.dp,
                                  row.dp, layout.zero_stage > 0 ? " that shard" : ""));
  }
  layout.recompute = row_recompute(row, stack, assumed);
  layout.overlap = stack.overlap;
  layout.sequence_parallel =
      layout.tp > 1 && row.sequence_parallel.value_or(stack.sequence_parallel);
  if (layout.tp == 1) layout.overlap.tp = false;
  return layout;
}

void set_chunks(Layout& layout, int v) {
  layout.v = v;
  layout.schedule =
      v > 1 ? planner::ScheduleKind::Interleaved : planner::ScheduleKind::OneForwardOneBackward;
}

int device_count(const Plan& plan) {
  return plan.cluster.nodes * plan.cluster.node.devices;
}

// Every v that cuts the layers of a stage evenly.
std::vector<int> chunk_choices(const Plan& plan) {
  const int layers = plan.model.layers / plan.layout.pp;
  std::vector<int> choices;
  for (int v = 1; v <= layers; ++v) {
    if (plan.model.layers % (plan.layout.pp * v) == 0) choices.push_back(v);
  }
  if (choices.empty()) choices.push_back(1);
  return choices;
}

// Fills microbatch size and v; empty if done, else why nothing is legal.
std::string choose_missing(const Row& row, const StackDescription& stack, RowPlan& made) {
  Plan& plan = made.plan;
  const bool is_v_open = !row.v && plan.layout.pp > 1 && stack.interleaving;
  const bool is_open = !row.microbatch || is_v_open;
  std::vector<std::int64_t> sizes(kMicrobatchSizes.begin(), kMicrobatchSizes.end());
  if (row.microbatch) sizes = {*row.microbatch};
  std::vector<int> chunks = {static_cast<int>(row.v.value_or(1))};
  if (is_v_open) chunks = chunk_choices(plan);
  std::optional<Layout> best;
  Duration best_time{};
  std::string reason = "no legal microbatch size";
  bool best_fits = false;
  for (const std::int64_t size : sizes) {
    for (const int v : chunks) {
      plan.layout.microbatch_size = size;
      set_chunks(plan.layout, v);
      const planner::Feasibility answer = planner::check(plan);
      if (!answer.broken.empty()) {
        reason = answer.broken.front().message;
        continue;
      }
      const bool fits = answer.out_of_memory.empty();
      if (best && best_fits && !fits) continue;
      const Duration time =
          is_open ? predict(plan, {.fidelity = sim::Fidelity::Analytic}).outcome.iteration
                  : Duration{};
      if (!best || (fits && !best_fits) || time < best_time - best_time / kTie) {
        best = plan.layout;
        best_time = time;
        best_fits = fits;
      }
    }
  }
  if (!best) return reason;
  plan.layout = *best;
  if (!row.microbatch) {
    made.assumed.push_back(
        fmt::format("microbatch_size {} (fastest that fits)", best->microbatch_size));
  }
  if (is_v_open) made.assumed.push_back(fmt::format("v {} (fastest that fits)", best->v));
  if (!best_fits) made.assumed.emplace_back("memory estimate is above the device's memory");
  return {};
}

}  // namespace

RowPlanResult plan_row(const Row& row, const std::vector<StackDescription>& stacks) {
  RowPlan made;
  const StackDescription& stack = describe_stack(row, stacks);
  made.stack = stack.name;
  made.assumed.push_back(fmt::format("stack {}", stack.name));
  Plan& plan = made.plan;
  const std::string cluster = cluster_template(row, made.assumed);
  if (cluster.empty()) return {std::nullopt, fmt::format("unknown GPU \"{}\"", row.gpu)};
  const auto precision = row_precision(row, made.assumed);
  if (!precision) return {std::nullopt, fmt::format("unknown precision \"{}\"", *row.precision)};
  try {
    plan.model = row_model(row, stack, made.assumed);
    models::check(plan.model);
    const std::string text = fmt::format("{{name: {}, gpus: {}}}", cluster, row.gpus);
    plan.cluster =
        topologies::resolve_cluster(Yaml::parse(text, row.id), data_folders().topologies);
  } catch (const Error& problem) {
    return {std::nullopt, problem.what()};
  }
  plan.stack = stack.stack;
  plan.training.global_batch_size = row.global_batch;
  plan.training.sequence_length = row.sequence;
  plan.training.precision = *precision;
  plan.training.gradient_dtype = stack.gradient_dtype;
  plan.training.optimizer = stack.optimizer;
  plan.layout = row_layout(row, stack, made.assumed);
  plan.placement = program::Placement::identity(device_count(plan));
  std::string reason = choose_missing(row, stack, made);
  if (!reason.empty()) return {std::nullopt, std::move(reason)};
  set_message_cost(plan);
  return {std::move(made), {}};
}

}  // namespace foresail::scenarios
