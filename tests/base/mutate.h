/// \file
/// How the fuzz tests damage their seeds.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "foresail/base/rng.h"

namespace foresail::test {

/// One to four edits: a byte changed, up to `longest` bytes erased, a token inserted whole, or up
/// to `longest` bytes of the text copied elsewhere.
inline std::string mutate(std::string text, const std::vector<std::string>& tokens,
                          std::uint64_t longest, RandomStream& random) {
  for (std::uint64_t edits = 1 + random.below(4); edits > 0 && !text.empty(); --edits) {
    const std::size_t at = random.below(text.size());
    switch (random.below(4)) {
      case 0:
        text[at] = static_cast<char>(random.below(256));
        break;
      case 1:
        text.erase(at, 1 + random.below(longest));
        break;
      case 2:
        text.insert(at, tokens[random.below(tokens.size())]);
        break;
      default:
        text.insert(at, text.substr(random.below(text.size()), random.below(longest)));
    }
  }
  return text;
}

}  // namespace foresail::test
