/// \file
/// Text as training data: bytes are tokens.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "foresail/runtime/sample_source.h"

namespace foresail::runtime {

class TextData : public SampleSource {
 public:
  struct Options {
    /// A text file, or a folder of which all regular files are read in sorted order (links to a
    /// file already read are skipped).
    std::filesystem::path path;
    std::int64_t sequence_length = 1;
    std::uint64_t seed = 1;
  };
  /// Reads everything. Throws Error{NotFound} or Error{Io} naming the path, Error{InvalidInput} if
  /// not even one sample fits.
  explicit TextData(const Options& options);

  /// The licence texts that every Debian machine has.
  static std::filesystem::path default_path();

  /// sequence_length + 1 bytes: inputs are all but the last, targets all but the first. Samples
  /// are windows that do not overlap, in an order drawn anew for each pass over the text
  /// (Fisher-Yates on the stream "data/<pass>").
  std::span<const unsigned char> sample(std::int64_t global_index) const;

  void read(std::int64_t global_index, std::span<std::int32_t> tokens) const override;
  std::int64_t samples_per_epoch() const override { return windows_; }
  std::int64_t bytes() const { return static_cast<std::int64_t>(text_.size()); }

 private:
  const std::vector<std::uint32_t>& order(std::int64_t pass) const;

  Options options_;
  std::string text_;
  std::int64_t windows_ = 0;
  mutable std::int64_t cached_pass_ = -1;
  mutable std::vector<std::uint32_t> cached_order_;
};

}  // namespace foresail::runtime
