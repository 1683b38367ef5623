#include "token_index.h"

#include <fmt/format.h>

#include <cstring>
#include <string_view>

#include "foresail/base/error.h"

namespace foresail::runtime {
namespace {

constexpr std::string_view kMagic{"MMIDIDX\0\0", 9};
constexpr std::size_t kTypeAt = 17;
constexpr std::size_t kCountsAt = 18;
constexpr std::size_t kHeaderBytes = 34;
constexpr std::int64_t kLengthBytes = 4, kOffsetBytes = 8, kBoundaryBytes = 8;

/// The file's numbers stand at any address. Little-endian, as every host that we run on.
template <class T>
T load(std::span<const unsigned char> bytes, std::size_t at) {
  T value{};
  std::memcpy(&value, bytes.data() + at, sizeof(T));
  return value;
}

}  // namespace

std::int64_t size_of(TokenType type) {
  switch (type) {
    case TokenType::Uint8:
    case TokenType::Int8:
      return 1;
    case TokenType::Int16:
    case TokenType::Uint16:
      return 2;
    case TokenType::Int32:
      return 4;
    case TokenType::Int64:
      return 8;
  }
  contract_failed("a token type", __FILE__, __LINE__);
}

TokenIndex::TokenIndex(const MappedFile& file, std::int64_t bin_bytes) : file_(file) {
  read_header();
  check_size();
  check_sequences(bin_bytes);
  check_boundaries();
}

void TokenIndex::fail(const std::string& what) const {
  throw Error(ErrorCode::InvalidInput, file_.path().string() + ": " + what);
}

void TokenIndex::read_header() {
  const auto bytes = file_.bytes();
  if (bytes.size() < kHeaderBytes) {
    fail(fmt::format("{} bytes, but the header of an index has {}", bytes.size(), kHeaderBytes));
  }
  if (std::memcmp(bytes.data(), kMagic.data(), kMagic.size()) != 0) {
    fail("does not start with MMIDIDX: no index of Megatron-LM's indexed format");
  }
  const auto version = load<std::uint64_t>(bytes, kMagic.size());
  if (version != 1) fail(fmt::format("version {} of the format, but only 1 is known", version));
  const auto code = load<std::uint8_t>(bytes, kTypeAt);
  const bool is_known = (code >= 1 && code <= 5) || code == 8;
  if (!is_known) fail(fmt::format("token type {}, but only 1 to 5 and 8 are integers", code));
  type_ = static_cast<TokenType>(code);
  sequences_ = load<std::int64_t>(bytes, kCountsAt);
  boundaries_ = load<std::int64_t>(bytes, kCountsAt + 8);
}

/// Counts are believed only where they give exactly the size that the file has.
void TokenIndex::check_size() const {
  const auto size = static_cast<std::int64_t>(file_.bytes().size());
  const bool fits = sequences_ >= 0 && boundaries_ >= 1 &&
                    sequences_ <= size / (kLengthBytes + kOffsetBytes) &&
                    boundaries_ <= size / kBoundaryBytes;
  const std::int64_t wanted = fits ? static_cast<std::int64_t>(kHeaderBytes) +
                                         sequences_ * (kLengthBytes + kOffsetBytes) +
                                         boundaries_ * kBoundaryBytes
                                   : 0;
  if (wanted == size) return;
  if (fits && sequences_ > 0 && wanted + sequences_ == size) {
    fail("has a mode for every sequence: multimodal data cannot be trained on");
  }
  fail(fmt::format("{} bytes do not hold the {} sequences and {} document boundaries of its header",
                   size, static_cast<std::uint64_t>(sequences_),
                   static_cast<std::uint64_t>(boundaries_)));
}

void TokenIndex::check_sequences(std::int64_t bin_bytes) const {
  const std::int64_t width = size_of(type_);
  std::int64_t total = 0;
  for (std::int64_t i = 0; i < sequences_; ++i) {
    const Sequence one = sequence(i);
    const bool is_inside = one.length >= 0 && one.offset >= 0 && one.offset <= bin_bytes &&
                           one.length <= (bin_bytes - one.offset) / width;
    if (!is_inside) {
      fail(
          fmt::format("sequence {}: {} tokens of {} bytes at byte {} are not within the {} bytes "
                      "of the .bin",
                      i, one.length, width, one.offset, bin_bytes));
    }
    if (__builtin_add_overflow(total, one.length, &total)) {
      fail(fmt::format("sequence {}: more than 2^63 tokens so far", i));
    }
  }
}

void TokenIndex::check_boundaries() const {
  if (first_sequence(0) != 0) {
    fail(fmt::format("document 0 starts at sequence {}, not at 0", first_sequence(0)));
  }
  for (std::int64_t i = 0; i < documents(); ++i) {
    if (first_sequence(i + 1) >= first_sequence(i)) continue;
    fail(fmt::format("document {} starts at sequence {} and ends at {}", i, first_sequence(i),
                     first_sequence(i + 1)));
  }
  if (first_sequence(documents()) != sequences_) {
    fail(fmt::format("the last document ends at sequence {} of {}", first_sequence(documents()),
                     sequences_));
  }
}

std::int64_t TokenIndex::tokens(std::int64_t document) const {
  std::int64_t sum = 0;
  for (std::int64_t i = first_sequence(document); i < first_sequence(document + 1); ++i) {
    sum += sequence(i).length;
  }
  return sum;
}

std::int64_t TokenIndex::first_sequence(std::int64_t document) const {
  const std::int64_t at = sequences_ * (kLengthBytes + kOffsetBytes) + document * kBoundaryBytes;
  return load<std::int64_t>(file_.bytes(), kHeaderBytes + static_cast<std::size_t>(at));
}

TokenIndex::Sequence TokenIndex::sequence(std::int64_t place) const {
  const std::int64_t length_at = place * kLengthBytes;
  const std::int64_t offset_at = sequences_ * kLengthBytes + place * kOffsetBytes;
  return {.offset =
              load<std::int64_t>(file_.bytes(), kHeaderBytes + static_cast<std::size_t>(offset_at)),
          .length = load<std::int32_t>(file_.bytes(),
                                       kHeaderBytes + static_cast<std::size_t>(length_at))};
}

}  // namespace foresail::runtime
