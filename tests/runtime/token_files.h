/// \file
/// Writes Megatron-LM's indexed format for tests, apart from the code that reads it.
#pragma once

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "foresail/base/document.h"

namespace foresail::testing {

/// One number as the bytes that it has in memory.
template <class T>
std::string raw(T value) {
  std::string bytes(sizeof(T), '\0');
  std::memcpy(bytes.data(), &value, sizeof(T));
  return bytes;
}

/// Documents of one sequence each, tokens as T with the format's code for it.
template <class T>
struct TokenFiles {
  std::uint8_t code = 0;
  std::vector<std::vector<T>> documents;

  std::string bin() const {
    std::string bytes;
    for (const auto& document : documents) {
      for (const T token : document) bytes += raw(token);
    }
    return bytes;
  }
  std::string idx() const {
    const auto count = static_cast<std::uint64_t>(documents.size());
    std::string bytes = std::string("MMIDIDX\0\0", 9) + raw(std::uint64_t{1}) + raw(code) +
                        raw(count) + raw(count + 1);
    for (const auto& document : documents) bytes += raw(static_cast<std::int32_t>(document.size()));
    std::int64_t offset = 0;
    for (const auto& document : documents) {
      bytes += raw(offset);
      offset += static_cast<std::int64_t>(document.size() * sizeof(T));
    }
    for (std::int64_t i = 0; i <= static_cast<std::int64_t>(count); ++i) bytes += raw(i);
    return bytes;
  }
  /// Returns the prefix.
  std::filesystem::path write(const std::filesystem::path& prefix) const {
    write_file(prefix.string() + ".bin", bin());
    write_file(prefix.string() + ".idx", idx());
    return prefix;
  }
};

/// `count` documents of 1 to `longest` tokens below `vocab`, all different by some formula.
inline TokenFiles<std::uint16_t> numbered_documents(std::size_t count, std::size_t longest,
                                                    std::size_t vocab) {
  TokenFiles<std::uint16_t> files{8, {}};
  std::size_t next = 0;
  for (std::size_t i = 0; i < count; ++i) {
    auto& document = files.documents.emplace_back();
    for (std::size_t k = 0; k <= i * 7 % longest; ++k) {
      document.push_back(static_cast<std::uint16_t>(next++ * 31 % vocab));
    }
  }
  return files;
}

}  // namespace foresail::testing
