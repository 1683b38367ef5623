#include "foresail/runtime/text_data.h"

#include <algorithm>
#include <numeric>
#include <set>

#include "foresail/base/document.h"
#include "foresail/base/error.h"
#include "foresail/base/rng.h"

namespace foresail::runtime {
namespace {

namespace fs = std::filesystem;

std::string read_folder(const fs::path& folder) {
  std::vector<fs::path> files;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
    if (entry.is_regular_file()) files.push_back(entry.path());
  }
  std::ranges::sort(files);
  std::string text;
  std::set<fs::path> seen;
  for (const fs::path& file : files) {
    if (seen.insert(fs::canonical(file)).second) text += read_file(file);
  }
  return text;
}

}  // namespace

fs::path TextData::default_path() {
  return "/usr/share/common-licenses";
}

TextData::TextData(const Options& options) : options_(options) {
  FORESAIL_EXPECT(options.sequence_length > 0);
  text_ = fs::is_directory(options.path) ? read_folder(options.path) : read_file(options.path);
  windows_ = bytes() / (options.sequence_length + 1);
  if (windows_ == 0) {
    throw Error(ErrorCode::InvalidInput, options.path.string() + ": " + std::to_string(bytes()) +
                                             " bytes of text, but one sample of sequence_length " +
                                             std::to_string(options.sequence_length) + " needs " +
                                             std::to_string(options.sequence_length + 1));
  }
}

std::span<const unsigned char> TextData::sample(std::int64_t global_index) const {
  FORESAIL_EXPECT(global_index >= 0);
  const auto place = static_cast<std::size_t>(global_index % windows_);
  const std::size_t window = order(global_index / windows_)[place];
  const auto length = static_cast<std::size_t>(options_.sequence_length + 1);
  return {reinterpret_cast<const unsigned char*>(text_.data()) + window * length, length};
}

void TextData::read(std::int64_t global_index, std::span<std::int32_t> tokens) const {
  const std::span<const unsigned char> bytes = sample(global_index);
  FORESAIL_EXPECT(tokens.size() == bytes.size());
  std::ranges::copy(bytes, tokens.begin());
}

const std::vector<std::uint32_t>& TextData::order(std::int64_t pass) const {
  if (cached_pass_ == pass) return cached_order_;
  cached_order_.resize(static_cast<std::size_t>(windows_));
  std::iota(cached_order_.begin(), cached_order_.end(), 0u);
  RandomStream stream = Rng(options_.seed).stream("data", static_cast<std::uint64_t>(pass));
  for (std::size_t i = cached_order_.size(); i > 1; --i) {
    std::swap(cached_order_[i - 1], cached_order_[stream.below(i)]);
  }
  cached_pass_ = pass;
  return cached_order_;
}

}  // namespace foresail::runtime
