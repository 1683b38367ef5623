/// \file
/// Jobs described for other frameworks, as scenarios: model, layout, training and software.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "foresail/base/document.h"
#include "foresail/base/names.h"

namespace foresail::scenarios {

enum class JobFormat {
  Megatron,    ///< a Megatron-LM command line or the shell script around it
  TorchTitan,  ///< a TorchTitan job configuration (TOML)
  Nemo  ///< a NeMo or NeMo Framework Launcher configuration (YAML with `model` and `trainer`)
};

struct ImportOptions {
  std::optional<JobFormat> format;  ///< by the file's name and content unless given
  std::string cluster;              ///< catalogue name or path
  int gpus = 0;            ///< 0: what the file says (NeMo: devices * num_nodes), else refused
  std::int64_t vocab = 0;  ///< where the file names only a tokenizer
  std::map<std::string, std::string> variables;  ///< of a shell script, instead of its own
};

struct ImportedJob {
  JobFormat format = JobFormat::Megatron;
  Document scenario;                ///< our schema, docs/reference/scenario.md
  std::vector<std::string> notes;   ///< what was assumed or left out, one a line
  std::vector<std::string> unused;  ///< keys of the file that say nothing here
};

/// Reads `path`. Throws Error{InvalidInput} with file, line and key for what is wrong or missing,
/// and for what a step needs and Foresail does not know (an unknown schedule, say).
ImportedJob import_job(const std::filesystem::path& path, const ImportOptions& options);

/// A scenario file with the notes as comments at its head.
std::string to_yaml(const ImportedJob& job, const std::string& source);

}  // namespace foresail::scenarios

namespace foresail {
template <>
inline constexpr auto kNames<scenarios::JobFormat> =
    std::to_array<Named<scenarios::JobFormat>>({{scenarios::JobFormat::Megatron, "megatron"},
                                                {scenarios::JobFormat::TorchTitan, "torchtitan"},
                                                {scenarios::JobFormat::Nemo, "nemo"}});
}  // namespace foresail
