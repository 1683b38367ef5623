#include "foresail/runtime/token_data.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "foresail/base/error.h"
#include "foresail/base/rng.h"
#include "mapped_file.h"
#include "shuffle.h"
#include "token_index.h"

namespace foresail::runtime {
namespace {

namespace fs = std::filesystem;

fs::path with_ending(const fs::path& prefix, const char* ending) {
  return prefix.string() + ending;
}

template <class T>
std::int64_t load(const unsigned char* from) {
  T value{};
  std::memcpy(&value, from, sizeof(T));
  return value;
}

std::int64_t load_token(TokenType type, const unsigned char* from) {
  switch (type) {
    case TokenType::Uint8:
      return load<std::uint8_t>(from);
    case TokenType::Int8:
      return load<std::int8_t>(from);
    case TokenType::Int16:
      return load<std::int16_t>(from);
    case TokenType::Uint16:
      return load<std::uint16_t>(from);
    case TokenType::Int32:
      return load<std::int32_t>(from);
    case TokenType::Int64:
      return load<std::int64_t>(from);
  }
  contract_failed("a token type", __FILE__, __LINE__);
}

/// Documents before this one are trained on. Halves go to the even number, as in Python.
std::int64_t split_end(const std::vector<double>& split, std::int64_t documents) {
  if (split.empty()) return documents;
  const double sum = std::accumulate(split.begin(), split.end(), 0.0);
  return std::llrint(split.front() / sum * static_cast<double>(documents));
}

}  // namespace

struct TokenData::Impl {
  explicit Impl(const SampleOptions& from)
      : options(from),
        bin(with_ending(from.path, ".bin")),
        file(with_ending(from.path, ".idx")),
        index(file, static_cast<std::int64_t>(bin.bytes().size())),
        documents(split_end(from.split, index.documents())) {
    if (documents > UINT32_MAX) {
      throw Error(ErrorCode::Unsupported, fmt::format("{}: {} documents, more than 2^32 - 1",
                                                      file.path().string(), documents));
    }
    for (std::int64_t i = 0; i < documents; ++i) tokens += index.tokens(i);
    samples = (tokens - 1) / options.sequence_length;
    if (tokens <= options.sequence_length) {
      throw Error(ErrorCode::InvalidInput,
                  fmt::format("{}: {} tokens in the {} documents to train on, but one sample of "
                              "sequence_length {} needs {}",
                              bin.path().string(), tokens, documents, options.sequence_length,
                              options.sequence_length + 1));
    }
  }

  /// Strings the documents together in the order of `epoch`.
  void turn_to(std::int64_t epoch) {
    if (epoch == current_epoch) return;
    order.resize(static_cast<std::size_t>(documents));
    std::iota(order.begin(), order.end(), 0u);
    const Rng rng(options.seed);
    RandomStream stream = rng.stream("data/documents", static_cast<std::uint64_t>(epoch));
    for (std::size_t i = order.size(); i > 1; --i) {
      std::swap(order[i - 1], order[stream.below(i)]);
    }
    starts.resize(order.size());
    std::int64_t start = 0;
    for (std::size_t i = 0; i < order.size(); ++i) {
      starts[i] = start;
      start += index.tokens(order[i]);
    }
    key = rng.stream("data/samples", static_cast<std::uint64_t>(epoch)).next();
    current_epoch = epoch;
  }

  /// Copies from token `first` of the epoch on.
  void copy(std::int64_t first, std::span<std::int32_t> into) const {
    const auto behind = std::upper_bound(starts.begin(), starts.end(), first);
    auto place = static_cast<std::size_t>(behind - starts.begin()) - 1;
    std::int64_t skip = first - starts[place];
    while (!into.empty()) {
      const std::int64_t document = order.at(place++);
      const std::int64_t end = index.first_sequence(document + 1);
      for (std::int64_t i = index.first_sequence(document); i < end && !into.empty(); ++i) {
        const TokenIndex::Sequence sequence = index.sequence(i);
        const std::int64_t here = std::min(skip, sequence.length);
        const std::int64_t count =
            std::min(sequence.length - here, static_cast<std::int64_t>(into.size()));
        skip -= here;
        convert(document, sequence, here, into.first(static_cast<std::size_t>(count)));
        into = into.subspan(static_cast<std::size_t>(count));
      }
    }
  }

  void convert(std::int64_t document, const TokenIndex::Sequence& sequence, std::int64_t first,
               std::span<std::int32_t> into) const {
    const std::int64_t width = size_of(index.type());
    const unsigned char* from = bin.bytes().data() + sequence.offset + first * width;
    for (std::size_t i = 0; i < into.size(); ++i, from += width) {
      const std::int64_t token = load_token(index.type(), from);
      if (token < 0 || token >= options.vocab) {
        throw Error(ErrorCode::InvalidInput,
                    fmt::format("{}: document {}: token {}, but model.vocab is {}",
                                bin.path().string(), document, token, options.vocab));
      }
      into[i] = static_cast<std::int32_t>(token);
    }
  }

  SampleOptions options;
  MappedFile bin, file;
  TokenIndex index;
  std::int64_t documents = 0;
  std::int64_t tokens = 0;
  std::int64_t samples = 0;
  std::int64_t current_epoch = -1;
  std::vector<std::uint32_t> order;  // documents, as the epoch strings them together
  std::vector<std::int64_t> starts;  // of those, in tokens of the epoch
  std::uint64_t key = 0;
};

TokenData::TokenData(const SampleOptions& options) {
  FORESAIL_EXPECT(options.sequence_length > 0);
  impl_ = std::make_unique<Impl>(options);
}

TokenData::~TokenData() = default;

void TokenData::read(std::int64_t global_index, std::span<std::int32_t> tokens) const {
  FORESAIL_EXPECT(global_index >= 0);
  FORESAIL_EXPECT(static_cast<std::int64_t>(tokens.size()) == impl_->options.sequence_length + 1);
  impl_->turn_to(global_index / impl_->samples);
  const std::int64_t place =
      shuffled_place(global_index % impl_->samples, impl_->samples, impl_->key);
  impl_->copy(place * impl_->options.sequence_length, tokens);
}

std::int64_t TokenData::samples_per_epoch() const {
  return impl_->samples;
}

std::int64_t TokenData::tokens() const {
  return impl_->tokens;
}

std::int64_t TokenData::documents() const {
  return impl_->documents;
}

}  // namespace foresail::runtime
