/// \file
/// What a rank trains on: samples of sequence_length + 1 tokens by their global index. Which sample
/// a step sees depends on the index and the seed alone, so every layout trains on the same data in
/// the same order.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <vector>

namespace foresail::runtime {

/// Where a rank gets the samples of its steps.
class BatchSource {
 public:
  virtual ~BatchSource() = default;
  /// Copies the samples `indices` (global, all of step `step`) one behind the other into `tokens`,
  /// indices.size() * (sequence_length + 1) of them. Called once a step, with steps in order from
  /// 0. Throws Error{InvalidInput} for a token that the model has no row for, Error{Device} if
  /// another process that reads for this one is gone.
  virtual void load(int step, std::span<const std::int64_t> indices,
                    std::span<std::int32_t> tokens) = 0;
};

/// Samples by global index. One thread at a time.
class SampleSource : public BatchSource {
 public:
  /// Fills `tokens`, sequence_length + 1 of them: inputs are all but the last, targets all but the
  /// first.
  virtual void read(std::int64_t global_index, std::span<std::int32_t> tokens) const = 0;
  /// Samples after which all data have been seen and the next pass over them begins.
  virtual std::int64_t samples_per_epoch() const = 0;
  void load(int step, std::span<const std::int64_t> indices,
            std::span<std::int32_t> tokens) override;
};

/// `path`: a file or folder of text (TextData), or the prefix of `<path>.bin` and `<path>.idx`
/// (TokenData; either of the two may be named as well).
struct SampleOptions {
  std::filesystem::path path;
  std::int64_t sequence_length = 1;
  std::uint64_t seed = 1;
  std::int64_t vocab = 256;   ///< tokens are below
  std::vector<double> split;  ///< program::Training::data_split
};
/// Throws Error{NotFound} if there is neither, Error{InvalidInput} for text with a vocabulary
/// under 256 or a split, and what TextData and TokenData throw.
std::unique_ptr<SampleSource> open_samples(const SampleOptions& options);

}  // namespace foresail::runtime
