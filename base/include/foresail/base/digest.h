/// \file
/// SHA-256, the one digest by which Plans, Programs and Traces prove that they belong together.
#pragma once

#include <string>
#include <string_view>

namespace foresail {

/// 64 lower-case hexadecimal digits.
std::string sha256(std::string_view bytes);

}  // namespace foresail
