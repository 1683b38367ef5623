// Megatron-LM's arguments (megatron/training/arguments.py); defaults are Megatron's.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <set>
#include <sstream>
#include <string_view>

#include "foresail/base/error.h"
#include "import_formats.h"
#include "import_stages.h"

namespace foresail::scenarios {
namespace {

// The integer in front of `text`, which may go on.
std::int64_t leading_integer(const ForeignKeys& keys, const std::string& key,
                             const std::string& text) {
  std::int64_t value = 0;
  const auto [end, status] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (status != std::errc{} || value < 0 || value > (std::int64_t{1} << 40)) {
    keys.fail(key, fmt::format("expected an integer, got \"{}\"", text));
  }
  return value;
}

void read_attention(ForeignKeys& keys, JobParts& parts) {
  Document& model = parts.model;
  model["heads"] = keys.required("num-attention-heads");
  if (const auto size = keys.integer("kv-channels")) model["head_size"] = *size;
  if (keys.flag("group-query-attention")) model["kv_heads"] = keys.required("num-query-groups");
  if (const auto window = keys.text("window-size")) {
    // "(1023,0)" or "1023 0": keys to the left, and none to the right.
    const std::size_t first = window->find_first_of("0123456789");
    if (first == std::string::npos) keys.fail("window-size", "expected LEFT,0");
    model["attention"] = "sliding_window";
    model["window"] = leading_integer(keys, "window-size", window->substr(first)) + 1;
  }
  if (!keys.flag("multi-latent-attention")) return;
  Document latent = {{"kv_rank", keys.integer("kv-lora-rank").value_or(32)},
                     {"query_rank", keys.integer("q-lora-rank").value_or(0)},
                     {"rope_head_size", keys.integer("qk-pos-emb-head-dim").value_or(64)}};
  if (const auto size = keys.integer("v-head-dim")) latent["value_head_size"] = *size;
  model["head_size"] = keys.integer("qk-head-dim").value_or(128);
  model["latent_attention"] = std::move(latent);
}

void read_experts(ForeignKeys& keys, JobParts& parts) {
  const auto count = keys.integer("num-experts");
  if (!count) return;
  Document experts = {{"count", *count},
                      {"per_token", keys.integer("moe-router-topk").value_or(2)}};
  const auto ffn = keys.integer("moe-ffn-hidden-size");
  if (ffn) experts["ffn"] = *ffn;
  if (const auto shared = keys.integer("moe-shared-expert-intermediate-size")) {
    experts["shared"] = 1;
    experts["shared_ffn"] = *shared;
  }
  if (const auto factor = keys.number("moe-expert-capacity-factor")) {
    experts["capacity_factor"] = *factor;
  }
  if (const auto every = keys.text("moe-layer-freq")) {
    if (every->find_first_not_of("0123456789") == std::string::npos) {
      experts["every"] = leading_integer(keys, "moe-layer-freq", *every);
    } else if (every->starts_with("([0]*") && every->find(")*") == std::string::npos) {
      experts["first_dense_layers"] = leading_integer(keys, "moe-layer-freq", every->substr(5));
    } else {
      keys.fail("moe-layer-freq", fmt::format("\"{}\" is not N or ([0]*N+[1]*M)", *every));
    }
  }
  parts.model["experts"] = std::move(experts);
}

void read_model(ForeignKeys& keys, const ImportOptions& options, JobParts& parts) {
  Document& model = parts.model;
  model["name"] = "imported";
  model["layers"] = keys.required("num-layers");
  model["hidden"] = keys.required("hidden-size");
  read_attention(keys, parts);
  const bool is_gated = keys.flag("swiglu");
  model["activation"] = is_gated ? "swiglu" : "gelu";
  if (keys.flag("squared-relu")) parts.notes.push_back("squared-relu is priced as gelu");
  if (const auto ffn = keys.integer("ffn-hidden-size")) {
    model["ffn"] = *ffn;
  } else if (is_gated) {
    // Megatron: int(4 h 2 / 3 / 64) 64.
    model["ffn"] = model["hidden"].get<std::int64_t>() * 8 / 3 / 64 * 64;
  }
  model["norm"] =
      keys.text("normalization").value_or("LayerNorm") == "RMSNorm" ? "rms_norm" : "layer_norm";
  const std::string positions = keys.text("position-embedding-type").value_or("learned_absolute");
  const bool is_rotary = keys.flag("use-rotary-position-embeddings") || positions == "rope" ||
                         positions == "yarn" || positions == "mrope";
  if (!is_rotary && positions != "learned_absolute") {
    keys.fail("position-embedding-type", fmt::format("\"{}\" is not known", positions));
  }
  model["positions"] = is_rotary ? "rotary" : "learned";
  const auto positions_max = keys.integer("max-position-embeddings");
  if (!is_rotary && positions_max) model["max_positions"] = *positions_max;
  model["vocab"] = vocabulary(keys, "vocab-size", options);
  model["tied_embeddings"] = !keys.flag("untie-embeddings-and-output-weights");
  model["biases"] = !keys.flag("disable-bias-linear");
  const double dropout = keys.number("hidden-dropout").value_or(0.1);
  const double attention = keys.number("attention-dropout").value_or(0.1);
  model["dropout"] = dropout > 0 || attention > 0;
  read_experts(keys, parts);
}

/// Layers of every global stage, and v from their number.
void read_stage_letters(ForeignKeys& keys, const std::string& text, JobParts& parts) {
  const char* const key = "pipeline-model-parallel-layout";
  std::vector<StageLetters> stages;
  try {
    stages = parse_stage_letters(text);
  } catch (const Error& error) {
    keys.fail(key, error.what());
  }
  const auto pp = parts.layout["pp"].get<std::size_t>();
  if (stages.size() % pp != 0) {
    keys.fail(key, fmt::format("{} stages % pipeline-model-parallel-size {} is not 0",
                               stages.size(), pp));
  }
  Document counts = Document::array();
  for (std::size_t at = 0; at < stages.size(); ++at) {
    StageLetters layers = stages[at];
    if (at == 0) {
      if (!layers.starts_with('E')) keys.fail(key, "must begin with E, the embedding");
      layers.erase(0, 1);
    }
    if (at + 1 == stages.size()) {
      if (!layers.ends_with('L')) keys.fail(key, "must end with L, the loss");
      layers.pop_back();
    }
    if (layers.find_first_not_of('t') != std::string::npos) {
      keys.fail(key, fmt::format("stage {} is \"{}\": the embedding stands on the first stage, the "
                                 "loss on the last, and layers that predict one more token (m) are "
                                 "not modelled",
                                 at, stages[at]));
    }
    counts.push_back(layers.size());
  }
  for (const char* other :
       {"num-virtual-stages-per-pipeline-rank", "num-layers-per-virtual-pipeline-stage",
        "decoder-first-pipeline-num-layers", "decoder-last-pipeline-num-layers",
        "account-for-embedding-in-pipeline-split", "account-for-loss-in-pipeline-split"}) {
    if (keys.has(other)) keys.fail(other, fmt::format("stands beside {}, which says it", key));
  }
  parts.layout["v"] = stages.size() / pp;
  parts.layout["stages"] = std::move(counts);
}

void read_stages(ForeignKeys& keys, JobParts& parts) {
  if (const auto text = keys.text("pipeline-model-parallel-layout")) {
    read_stage_letters(keys, *text, parts);
    return;
  }
  Document stages = Document::object();
  const auto first = keys.integer("decoder-first-pipeline-num-layers");
  const auto last = keys.integer("decoder-last-pipeline-num-layers");
  if (first) stages["first_stage_layers"] = *first;
  if (last) stages["last_stage_layers"] = *last;
  if (keys.flag("account-for-embedding-in-pipeline-split")) stages["account_for_embedding"] = true;
  if (keys.flag("account-for-loss-in-pipeline-split")) stages["account_for_loss"] = true;
  if (!stages.empty()) parts.layout["stages"] = std::move(stages);
}

void read_pipeline(ForeignKeys& keys, JobParts& parts) {
  const std::int64_t pp = keys.integer("pipeline-model-parallel-size").value_or(1);
  parts.layout["pp"] = pp;
  const auto layers = parts.model["layers"].get<std::int64_t>();
  std::int64_t v = keys.integer("num-virtual-stages-per-pipeline-rank").value_or(1);
  if (const auto per_chunk = keys.integer("num-layers-per-virtual-pipeline-stage")) {
    if (layers % (pp * *per_chunk) != 0) {
      keys.fail("num-layers-per-virtual-pipeline-stage",
                fmt::format("num-layers {} % (pipeline-model-parallel-size {} * {}) is not 0",
                            layers, pp, *per_chunk));
    }
    v = layers / (pp * *per_chunk);
  }
  parts.layout["v"] = v;
  if (const auto group = keys.integer("microbatch-group-size-per-virtual-pipeline-stage")) {
    parts.layout["group_size"] = *group;
  }
  read_stages(keys, parts);
}

// Megatron-Core's names of modules, by ours; mlp means that of all layers here.
Document selective_recomputation(ForeignKeys& keys) {
  const auto text = keys.text("recompute-modules");
  if (!text) return "selective";
  constexpr std::array<std::pair<std::string_view, std::string_view>, 5> kModules = {
      {{"core_attn", "core_attention"},
       {"layernorm", "norm"},
       {"moe_act", "activation"},
       {"mlp", "mlp"},
       {"moe", "mlp"}}};
  std::set<std::string> modules;
  std::istringstream words(*text);
  for (std::string word; words >> word;) {
    const auto* const found =
        std::ranges::find(kModules, word, [](const auto& m) { return m.first; });
    if (found == kModules.end()) {
      keys.fail("recompute-modules",
                "\"" + word + "\" is not one of core_attn, layernorm, moe_act, mlp, moe");
    }
    modules.emplace(found->second);
  }
  return modules;
}

/// Reductions of an interleaved pipeline are aligned unless told otherwise; gathers too, in
/// releases from 2025 on, older ones align them if told to. Until 2024 both were called delayed.
planner::DataMessages aligned_messages(ForeignKeys& keys) {
  planner::DataMessages aligned(true);
  for (const char* key : {"no-align-grad-reduce", "no-delay-grad-reduce"}) {
    aligned.gradients = !keys.flag(key) && aligned.gradients;
  }
  for (const char* key : {"align-param-gather", "delay-param-gather"}) {
    aligned.parameters = keys.flag(key, true) && aligned.parameters;
  }
  aligned.parameters = !keys.flag("no-align-param-gather") && aligned.parameters;
  return aligned;
}

void read_overlap(ForeignKeys& keys, JobParts& parts) {
  Document& layout = parts.layout;
  const bool is_interleaved = layout["v"].get<std::int64_t>() > 1;
  layout["overlap"] = {{"tp", keys.flag("tp-comm-overlap")},
                       {"pp", is_interleaved && !keys.flag("no-overlap-p2p-communication")}};
  const planner::DataMessages asked(keys.flag("overlap-grad-reduce"),
                                    keys.flag("overlap-param-gather"));
  const bool is_sharded = layout["zero_stage"] != 0;
  if (asked.parameters && (!asked.gradients || !is_sharded)) {
    parts.notes.push_back(
        "Megatron-LM refuses --overlap-param-gather without --overlap-grad-reduce and "
        "--use-distributed-optimizer");
  }
  put_data_overlap(parts, {asked.gradients, asked.parameters && is_sharded},
                   aligned_messages(keys));
}

void read_layout(ForeignKeys& keys, JobParts& parts) {
  Document& layout = parts.layout;
  const std::int64_t tp = keys.integer("tensor-model-parallel-size").value_or(1);
  layout["tp"] = tp;
  read_pipeline(keys, parts);
  const std::int64_t cp = keys.integer("context-parallel-size").value_or(1);
  layout["cp"] = cp;
  if (cp > 1) {
    const std::string kind = keys.text("cp-comm-type").value_or("p2p");
    if (kind != "p2p" && kind != "all_gather" && kind != "a2a") {
      keys.fail("cp-comm-type", fmt::format("\"{}\" is not known", kind));
    }
    layout["cp_kind"] = kind == "p2p" ? "ring" : kind == "a2a" ? "all_to_all" : "all_gather";
  }
  const std::int64_t ep = keys.integer("expert-model-parallel-size").value_or(1);
  if (ep > 1) layout["ep"] = ep;
  if (const auto etp = keys.integer("expert-tensor-parallel-size")) layout["etp"] = *etp;
  layout["microbatch_size"] = keys.required("micro-batch-size");
  layout["sequence_parallel"] = tp > 1 && keys.flag("sequence-parallel");
  const bool is_distributed = keys.flag("use-distributed-optimizer");
  std::int64_t zero = is_distributed ? 1 : 0;
  const std::string sharding = keys.text("data-parallel-sharding-strategy").value_or("no_shard");
  if (keys.flag("use-megatron-fsdp") || keys.flag("use-custom-fsdp")) {
    zero = sharding == "optim_grads_params" ? 3 : sharding == "optim_grads" ? 2 : zero;
  }
  if (keys.flag("use-torch-fsdp2")) zero = 3;
  layout["zero_stage"] = zero;
  const double offloaded = keys.number("optimizer-offload-fraction").value_or(1);
  if (!(offloaded >= 0 && offloaded <= 1)) {
    keys.fail("optimizer-offload-fraction", "must be a share, 0 to 1");
  }
  if (keys.flag("optimizer-cpu-offload")) layout["optimizer_offload"] = offloaded;
  const std::string granularity = keys.text("recompute-granularity").value_or("none");
  if (granularity == "full") {
    layout["recompute"] = full_recomputation(keys, "recompute-method", "recompute-num-layers");
  } else if (granularity == "selective" || keys.flag("recompute-activations")) {
    layout["recompute"] = selective_recomputation(keys);
  }
  if (keys.flag("use-tp-pp-dp-mapping")) layout["rank_order"] = "tp-cp-ep-pp-dp";
  read_overlap(keys, parts);
}

void read_training(ForeignKeys& keys, JobParts& parts) {
  Document& training = parts.training;
  if (const auto batch = keys.integer("global-batch-size")) {
    training["global_batch_size"] = *batch;
  } else {
    // Megatron: one microbatch per replica.
    parts.local_batch = parts.layout["microbatch_size"].get<std::int64_t>();
  }
  training["sequence_length"] = keys.required("seq-length");
  const bool is_fp8 = keys.has("fp8-format") && keys.text("fp8-format").has_value();
  const bool is_bf16 = keys.flag("bf16");
  const bool is_fp16 = keys.flag("fp16");
  training["precision"] = is_fp8 ? "fp8" : is_bf16 ? "bf16" : is_fp16 ? "fp16" : "fp32";
  const bool is_reduced_16 = keys.flag("grad-reduce-in-bf16");
  const bool is_fp32 = is_bf16 || keys.flag("accumulate-allreduce-grads-in-fp32");
  training["gradient_dtype"] = is_reduced_16 || !is_fp32 ? training["precision"] : "fp32";
  if (is_fp8 && training["gradient_dtype"] == "fp8") training["gradient_dtype"] = "bf16";
  const std::string optimizer = keys.text("optimizer").value_or("adam");
  if (optimizer != "adam") keys.fail("optimizer", fmt::format("\"{}\" is not adam", optimizer));
  training["optimizer"] = "adam";
  if (const auto rate = keys.number("lr")) training["learning_rate"] = *rate;
  training["clip"] = keys.number("clip-grad").value_or(1.0);
  if (const auto seed = keys.integer("seed", 0))
    parts.notes.push_back(fmt::format("seed {} of the job is not the seed of the network", *seed));
}

void read_stack(ForeignKeys& keys, JobParts& parts) {
  const std::string backend = keys.text("attention-backend").value_or("auto");
  const bool is_te =
      keys.text("transformer-impl").value_or("transformer_engine") == "transformer_engine";
  const bool wants_flash = keys.flag("use-flash-attn");
  const bool is_flash =
      backend == "flash" || backend == "fused" || (backend == "auto" && (wants_flash || is_te));
  parts.stack["flash_attention"] = is_flash;
  parts.stack["fused_kernels"] =
      !keys.flag("no-bias-gelu-fusion") && !keys.flag("no-bias-dropout-fusion") &&
      !keys.flag("no-bias-swiglu-fusion") && !keys.flag("no-masked-softmax-fusion");
  // megatron/core/fusions/fused_softmax.py; fused attention has a softmax of its own.
  if (!is_flash) parts.stack["fused_softmax_multiple"] = 4;
  parts.stack["fused_cross_entropy"] = keys.flag("cross-entropy-loss-fusion");
  parts.stack["async_tensor_parallel"] = !keys.flag("no-async-tensor-model-parallel-allreduce");
  parts.stack["scatter_gather"] = !keys.flag("no-scatter-gather-tensors-in-pipeline");
}

}  // namespace

JobParts read_megatron(ForeignKeys& keys, const ImportOptions& options) {
  JobParts parts;
  read_model(keys, options, parts);
  read_layout(keys, parts);
  read_training(keys, parts);
  read_stack(keys, parts);
  const auto per_node = keys.integer("nproc_per_node").has_value() ? keys.integer("nproc_per_node")
                                                                   : keys.integer("nproc-per-node");
  const auto nodes = keys.integer("nnodes");
  if (per_node && nodes)
    parts.gpus = static_cast<int>(std::min<std::int64_t>(*per_node * *nodes, 1 << 22));
  return parts;
}

}  // namespace foresail::scenarios
