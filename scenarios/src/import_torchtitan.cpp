// TorchTitan's job configuration (torchtitan/config); defaults are TorchTitan's.
#include <fmt/format.h>

#include <algorithm>

#include "import_formats.h"

namespace foresail::scenarios {
namespace {

// Flavours by the model's name: torchtitan/models/<name>/__init__.py.
struct Flavor {
  std::string_view name, flavor, model;
};
constexpr Flavor kFlavors[] = {
    {"llama3", "8B", "llama3_8b"},         {"llama3", "70B", "llama3_70b"},
    {"llama3", "405B", "llama3_405b"},     {"deepseek_v3", "671B", "deepseek_v3"},
    {"qwen3", "30B-A3B", "qwen3_30b_a3b"},
};

void read_model(ForeignKeys& keys, JobParts& parts) {
  const auto name = keys.text("model.name");
  const auto flavor = keys.text("model.flavor");
  if (!name) keys.fail("model.name", "is missing");
  if (!flavor) keys.fail("model.flavor", "is missing");
  std::string known;
  for (const Flavor& each : kFlavors) {
    if (each.name == *name && each.flavor == *flavor) {
      parts.model = std::string(each.model);
      return;
    }
    known += fmt::format("{}{} {}", known.empty() ? "" : ", ", each.name, each.flavor);
  }
  keys.fail("model.flavor",
            fmt::format("{} {} is not known here ({}); put any of these and replace "
                        "`model` in the scenario",
                        *name, *flavor, known));
}

struct Degrees {
  std::int64_t replicate, shard, tp, cp, pp, ep;
};

// -1 of data_parallel_shard_degree stands for what is left; it is settled with the GPUs.
Degrees degrees_of(ForeignKeys& keys) {
  const std::string at = "parallelism.";
  return {.replicate = keys.integer(at + "data_parallel_replicate_degree").value_or(1),
          .shard = keys.integer(at + "data_parallel_shard_degree", -1).value_or(-1),
          .tp = keys.integer(at + "tensor_parallel_degree").value_or(1),
          .cp = keys.integer(at + "context_parallel_degree").value_or(1),
          .pp = keys.integer(at + "pipeline_parallel_degree").value_or(1),
          .ep = keys.integer(at + "expert_parallel_degree").value_or(1)};
}

std::string schedule_of(ForeignKeys& keys) {
  const std::string key = "parallelism.pipeline_parallel_schedule";
  const std::string name = keys.text(key).value_or("1F1B");
  if (name == "1F1B") return "1f1b";
  if (name == "GPipe") return "gpipe";
  if (name == "Interleaved1F1B") return "interleaved";
  if (name == "ZBVZeroBubble") return "zb_v";
  keys.fail(key,
            fmt::format("\"{}\" is not one of 1F1B, GPipe, Interleaved1F1B, ZBVZeroBubble", name));
}

void read_pipeline(ForeignKeys& keys, const Degrees& degrees, JobParts& parts) {
  const std::int64_t local = keys.integer("training.local_batch_size")
                                 .value_or(keys.integer("training.batch_size").value_or(8));
  parts.local_batch = local;
  Document& layout = parts.layout;
  layout["pp"] = degrees.pp;
  if (degrees.pp == 1) {
    layout["microbatch_size"] =
        local;  // more steps of accumulation come with a larger global batch
    return;
  }
  layout["microbatch_size"] =
      keys.integer("parallelism.pipeline_parallel_microbatch_size").value_or(1);
  layout["schedule"] = schedule_of(keys);
  if (layout["schedule"] == "interleaved") layout["v"] = 2;
  if (keys.has("parallelism.pipeline_parallel_layers_per_stage")) {
    keys.fail("parallelism.pipeline_parallel_layers_per_stage",
              "stages of so many layers are given as layout.v; not read from here");
  }
}

void read_layout(ForeignKeys& keys, JobParts& parts) {
  const Degrees degrees = degrees_of(keys);
  Document& layout = parts.layout;
  layout["tp"] = degrees.tp;
  layout["cp"] = degrees.cp;
  if (degrees.ep > 1) layout["ep"] = degrees.ep;
  read_pipeline(keys, degrees, parts);
  layout["sequence_parallel"] = degrees.tp > 1;
  if (degrees.shard == 0) {
    keys.fail("parallelism.data_parallel_shard_degree", "must be -1 or at least 1");
  }
  if (degrees.shard > 0) parts.dp = degrees.replicate * degrees.shard;
  layout["zero_stage"] = degrees.shard == 1 ? 0 : 3;
  if (degrees.replicate > 1 && degrees.shard > 1) layout["shard_size"] = degrees.shard * degrees.cp;
  if (degrees.replicate > 1 && degrees.shard < 0) {
    keys.fail("parallelism.data_parallel_shard_degree",
              "-1 beside a data_parallel_replicate_degree above 1: give the degree");
  }
  layout["overlap"] = {
      {"tp", degrees.tp > 1 && keys.flag("parallelism.enable_async_tensor_parallel")},
      {"dp", true}};
  const std::string mode = keys.text("activation_checkpoint.mode").value_or("selective");
  if (mode == "full") {
    layout["recompute"] = "full";
  } else if (mode == "selective") {
    // Keeps every other GEMM and the attention; the closest of ours keeps all GEMMs.
    layout["recompute"] = "selective";
    parts.notes.push_back(
        "selective activation checkpoints keep more here: attention alone is "
        "recomputed");
  }
}

}  // namespace

JobParts read_torchtitan(ForeignKeys& keys) {
  JobParts parts;
  read_model(keys, parts);
  read_layout(keys, parts);
  Document& training = parts.training;
  training["sequence_length"] = keys.integer("training.seq_len").value_or(2048);
  const auto global = keys.integer("training.global_batch_size", -1);
  if (global && *global > 0) training["global_batch_size"] = *global;
  const std::string converters = keys.text("model.converters").value_or("");
  const bool is_fp8 = converters.find("float8") != std::string::npos;
  const std::string dtype = keys.text("training.mixed_precision_param").value_or("bfloat16");
  training["precision"] = is_fp8 ? "fp8" : dtype == "bfloat16" ? "bf16" : "fp32";
  const std::string reduce = keys.text("training.mixed_precision_reduce").value_or("float32");
  training["gradient_dtype"] = reduce == "bfloat16" ? "bf16" : "fp32";
  training["optimizer"] = "adam";
  const std::string optimizer = keys.text("optimizer.name").value_or("AdamW");
  if (optimizer != "AdamW" && optimizer != "Adam") {
    keys.fail("optimizer.name", fmt::format("\"{}\" is not Adam or AdamW", optimizer));
  }
  if (const auto rate = keys.number("optimizer.lr")) training["learning_rate"] = *rate;
  training["clip"] = keys.number("training.max_norm").value_or(1.0);
  const bool is_compiled = keys.flag("compile.enable") || keys.flag("training.compile");
  parts.stack = {{"flash_attention", true},
                 {"fused_kernels", is_compiled},
                 {"fused_cross_entropy", is_compiled},
                 {"scatter_gather", false}};
  return parts;
}

}  // namespace foresail::scenarios
