#include "output_checks.h"

#include <fmt/format.h>

#include <fstream>

#include "foresail/base/error.h"

namespace foresail::cli {

namespace fs = std::filesystem;

void demand_folder(const char* option, const fs::path& path) {
  fs::path made = path;
  std::error_code problem;
  while (!made.empty() && !fs::exists(made, problem)) made = made.parent_path();
  if (made.empty()) made = ".";
  const fs::path probe = made / ".foresail_probe";
  const bool is_open = std::ofstream(probe).is_open();
  fs::remove(probe, problem);
  if (is_open) return;
  throw Error(ErrorCode::InvalidInput, fmt::format("{} {}: {} is no folder that can be written to",
                                                   option, path.string(), made.string()));
}

void demand_file(const char* option, const std::string& name) {
  if (name.empty()) return;
  std::error_code problem;
  const bool is_new = !fs::exists(name, problem);
  const bool is_open = std::ofstream(name, std::ios::app).is_open();
  if (is_open && is_new) fs::remove(name, problem);
  if (is_open) return;
  throw Error(ErrorCode::InvalidInput, fmt::format("{} {}: cannot be written", option, name));
}

}  // namespace foresail::cli
