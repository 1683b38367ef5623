/// \file
/// The catalogue, for tests.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "foresail/models/model.h"

namespace foresail::models {

inline std::filesystem::path catalogue_folder() {
  return std::filesystem::path(FORESAIL_SOURCE_DIR) / "models" / "catalogue";
}

inline std::filesystem::path data_file(const std::string& name) {
  return std::filesystem::path(FORESAIL_SOURCE_DIR) / "tests" / "models" / "data" / name;
}

inline Model catalogue_model(const std::string& name) {
  return resolve_model(Yaml::parse(name, "name"), {catalogue_folder()});
}

}  // namespace foresail::models
