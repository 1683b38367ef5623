/// \file
/// Files that other files name.
#pragma once

#include <filesystem>

#include "foresail/base/yaml.h"

namespace foresail {

/// The file that the scalar `node` names, relative to the file in which it stands. Throws what
/// read_file() does, behind file, line and key of `node`: it is there that a name was mistyped; and
/// what Yaml::parse() does, with the other file's line.
Yaml load_referenced(const Yaml& node);
/// Where that file is.
std::filesystem::path referenced_path(const Yaml& node);

}  // namespace foresail
