/// \file
/// What the values of options may be, and how a wrong command line is refused, in both programs.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <limits>
#include <string>

namespace foresail::cli {

/// A whole number within [low, high].
CLI::Validator whole_number(std::int64_t low,
                            std::int64_t high = std::numeric_limits<std::int32_t>::max());
/// "2.5"; up to 1e9.
CLI::Validator seconds_above_zero();

/// An empty value, such as that of a shell variable that is not set, is none: refused for every
/// option of `app` and its commands.
void refuse_empty_values(CLI::App& app);

/// Refusals are one line, beginning with the program's name.
void refuse_in_one_line(CLI::App& app);

}  // namespace foresail::cli
