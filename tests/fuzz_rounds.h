/// \file
/// How long tests of damaged input run.
#pragma once

#include <cstdlib>

namespace foresail::test {

/// Inputs to try: FORESAIL_FUZZ_ROUNDS, or `usual`.
inline int fuzz_rounds(int usual) {
  const char* given = std::getenv("FORESAIL_FUZZ_ROUNDS");
  return given == nullptr ? usual : std::atoi(given);
}

}  // namespace foresail::test
