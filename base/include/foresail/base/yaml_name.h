/// \file
/// Names in YAML, which end up in tables, messages and file names.
#pragma once

#include <string>

#include "foresail/base/yaml.h"

namespace foresail {

/// The scalar `node`: 1 to 256 bytes without line breaks, tabs or other control characters. Throws
/// Error{InvalidInput} with file, line and key.
std::string read_name(const Yaml& node);

}  // namespace foresail
