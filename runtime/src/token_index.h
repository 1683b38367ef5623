/// \file
/// Reads `<prefix>.idx` of Megatron-LM's indexed format, which foresail/runtime/token_data.h
/// describes.
#pragma once

#include <cstdint>

#include "mapped_file.h"

namespace foresail::runtime {

/// The codes that stand in the file.
enum class TokenType : std::uint8_t {
  Uint8 = 1,
  Int8 = 2,
  Int16 = 3,
  Int32 = 4,
  Int64 = 5,
  Uint16 = 8
};
std::int64_t size_of(TokenType type);

class TokenIndex {
 public:
  /// Tokens that stand together in the .bin.
  struct Sequence {
    std::int64_t offset = 0;  ///< in bytes
    std::int64_t length = 0;  ///< in tokens
  };

  /// Checks everything: afterwards every sequence lies within `bin_bytes`, and documents are ranges
  /// of sequences. Throws Error{InvalidInput} with the index's path. `file` must outlive it.
  TokenIndex(const MappedFile& file, std::int64_t bin_bytes);

  TokenType type() const { return type_; }
  std::int64_t documents() const { return boundaries_ - 1; }
  /// Tokens of a document.
  std::int64_t tokens(std::int64_t document) const;
  /// The sequences of document i are those from first_sequence(i) up to first_sequence(i + 1).
  std::int64_t first_sequence(std::int64_t document) const;
  Sequence sequence(std::int64_t place) const;

 private:
  void read_header();
  void check_size() const;
  void check_sequences(std::int64_t bin_bytes) const;
  void check_boundaries() const;
  [[noreturn]] void fail(const std::string& what) const;

  const MappedFile& file_;
  TokenType type_ = TokenType::Uint8;
  std::int64_t sequences_ = 0;
  std::int64_t boundaries_ = 0;
};

}  // namespace foresail::runtime
