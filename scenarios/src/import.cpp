#include "foresail/scenarios/import.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "foresail/base/error.h"
#include "foresail/base/yaml.h"
#include "import_formats.h"

namespace foresail::scenarios {
namespace {

// What no step time depends on: data, logging, checkpoints, learning-rate schedules ...
constexpr std::array kWithoutEffect = {
    "adam",     "attn_",   "beta",    "checkpoint.", "data",        "decay",     "eval",   "exp_",
    "exit",     "init",    "job.",    "load",        "log",         "lr",        "master", "merge",
    "metrics.", "monitor", "node",    "nsys",        "num-workers", "profil",    "ramp",   "save",
    "sched",    "seed",    "split",   "tensorboard", "timeout",     "tokenizer", "train-", "vocab",
    "wandb",    "warmup",  "epsilon", "weight",      "iters",       "steps",     "hydra",  "run."};

bool has_effect(const std::string& key) {
  return std::ranges::none_of(
      kWithoutEffect, [&](const char* part) { return key.find(part) != std::string::npos; });
}

JobFormat format_of(const std::filesystem::path& path) {
  const std::string extension = path.extension().string();
  if (extension == ".toml") return JobFormat::TorchTitan;
  if (extension == ".yaml" || extension == ".yml") return JobFormat::Nemo;
  return JobFormat::Megatron;
}

ForeignKeys keys_of(const std::filesystem::path& path, JobFormat format,
                    const ImportOptions& options) {
  if (format == JobFormat::Nemo) return nemo_keys(Yaml::load(path));
  const std::string text = read_file(path);
  if (format == JobFormat::TorchTitan) return toml_keys(text, path.string());
  return megatron_keys(text, path.string(), options.variables);
}

JobParts parts_of(ForeignKeys& keys, JobFormat format, const ImportOptions& options) {
  switch (format) {
    case JobFormat::TorchTitan:
      return read_torchtitan(keys);
    case JobFormat::Nemo:
      return read_nemo(keys, options);
    case JobFormat::Megatron:
      break;
  }
  return read_megatron(keys, options);
}

std::int64_t degree(const Document& layout, const char* name) {
  return layout.value(name, std::int64_t{1});
}

// Replicas from the GPUs, and the batch from the replicas.
void settle(const std::string& file, const ImportOptions& options, JobParts& parts) {
  const auto fail = [&](const std::string& message) {
    throw Error(ErrorCode::InvalidInput, file + ": " + message);
  };
  if (options.gpus > 0) {
    if (parts.gpus > 0 && parts.gpus != options.gpus) {
      parts.notes.push_back(fmt::format("the file is for {} GPUs", parts.gpus));
    }
    parts.gpus = options.gpus;
  }
  const std::int64_t model_ranks =
      degree(parts.layout, "tp") * degree(parts.layout, "cp") * degree(parts.layout, "pp");
  if (parts.gpus == 0 && parts.dp > 0) {
    parts.gpus = static_cast<int>(std::min<std::int64_t>(model_ranks * parts.dp, 1 << 22));
  }
  if (parts.gpus == 0) fail("says no number of GPUs; give --gpus");
  if (parts.dp == 0) {
    if (parts.gpus % model_ranks != 0) {
      fail(fmt::format("{} GPUs % (tp {} * cp {} * pp {}) = {}, must be 0", parts.gpus,
                       degree(parts.layout, "tp"), degree(parts.layout, "cp"),
                       degree(parts.layout, "pp"), parts.gpus % model_ranks));
    }
    parts.dp = parts.gpus / model_ranks;
  }
  parts.layout["dp"] = parts.dp;
  if (!parts.training.contains("global_batch_size")) {
    parts.training["global_batch_size"] = parts.local_batch * parts.dp;
    parts.notes.push_back(fmt::format("global batch {}: {} samples in each of {} replicas",
                                      parts.local_batch * parts.dp, parts.local_batch, parts.dp));
  }
  if (parts.dp == 1 && parts.layout.value("zero_stage", 0) > 0) parts.layout["zero_stage"] = 0;
}

}  // namespace

void put_data_overlap(JobParts& parts, planner::DataMessages hidden,
                      planner::DataMessages aligned) {
  Document& overlap = parts.layout["overlap"];
  overlap["dp"] = planner::to_document(hidden);
  const planner::DataMessages both(hidden.gradients && aligned.gradients,
                                   hidden.parameters && aligned.parameters);
  const bool is_interleaved = parts.layout["v"].get<std::int64_t>() > 1;
  if (!both.any() || !is_interleaved || parts.layout["zero_stage"] == 3) return;
  overlap["aligned"] = planner::to_document(both);
  parts.notes.push_back(
      fmt::format("stages start together what they send for data parallelism: overlap.aligned {}",
                  planner::to_text(both)));
}

std::int64_t vocabulary(ForeignKeys& keys, const std::string& key, const ImportOptions& options) {
  const auto said = keys.integer(key);
  if (options.vocab > 0) return options.vocab;
  if (said) return *said;
  keys.fail(key, "the file names no vocabulary size; give --vocab");
}

Document full_recomputation(ForeignKeys& keys, const std::string& method_key,
                            const std::string& layers_key) {
  const std::string method = keys.text(method_key).value_or("uniform");
  if (method != "uniform" && method != "block") {
    keys.fail(method_key, fmt::format("\"{}\" is not uniform or block", method));
  }
  const std::int64_t layers = keys.integer(layers_key).value_or(1);
  if (method == "uniform" && layers == 1) return "full";
  return {{"method", method}, {"layers", layers}};
}

ImportedJob import_job(const std::filesystem::path& path, const ImportOptions& options) {
  ImportedJob job;
  job.format = options.format.value_or(format_of(path));
  ForeignKeys keys = keys_of(path, job.format, options);
  JobParts parts = parts_of(keys, job.format, options);
  settle(path.string(), options, parts);
  job.notes = std::move(parts.notes);
  for (const std::string& key : keys.untaken()) {
    if (has_effect(key)) job.unused.push_back(key);
  }
  job.scenario = {{"foresail", 1},
                  {"model", std::move(parts.model)},
                  {"cluster", {{"name", options.cluster}, {"gpus", parts.gpus}}},
                  {"layout", std::move(parts.layout)},
                  {"training", std::move(parts.training)},
                  {"stack", std::move(parts.stack)}};
  return job;
}

std::string to_yaml(const ImportedJob& job, const std::string& source) {
  std::string text = fmt::format("# From {} ({}).\n", source, to_string(job.format));
  for (const std::string& note : job.notes) text += "# - " + note + "\n";
  if (!job.unused.empty()) {
    text += "# Not used:";
    for (const std::string& key : job.unused) text += " " + key;
    text += "\n";
  }
  return text + foresail::to_yaml(job.scenario);
}

}  // namespace foresail::scenarios
