/// \file
/// Tokens that were made beforehand, in Megatron-LM's indexed format: `<prefix>.bin` holds the
/// tokens, `<prefix>.idx` where each document stands.
///
/// The index, little-endian: "MMIDIDX\0\0", version 1 (8 bytes), token type (1 byte), number of
/// sequences s and of document boundaries d (8 bytes each), s lengths in tokens (4 bytes), s byte
/// offsets into the .bin (8 bytes), d boundaries (8 bytes): document i is the sequences from
/// boundary i up to i + 1. Token types: 1 uint8, 2 int8, 3 int16, 4 int32, 5 int64, 8 uint16
/// (megatron/core/datasets/indexed_dataset.py; 6 and 7 are floating point, refused here).
#pragma once

#include "foresail/runtime/sample_source.h"

namespace foresail::runtime {

/// **Order.** With T tokens in the documents of the split and samples of S + 1 tokens:
/// 1. Epoch e strings all documents together in an order of its own: Fisher-Yates on the stream
///    ("data/documents", e) of the seed.
/// 2. Sample k of the epoch is the tokens from k S to k S + S, whatever documents they are from:
///    its last token is the first of sample k + 1, so every token but the first is a target once.
///    n = (T - 1) / S samples fit; what is left over is not seen in this epoch.
/// 3. Global sample g is sample p(g mod n) of epoch g / n, where p permutes 0 ... n - 1: a Feistel
///    network (shuffled_place) keyed by the stream ("data/samples", e).
class TokenData : public SampleSource {
 public:
  /// `options.path` is the prefix. Of D documents those before round(D * first / sum) of the split
  /// are trained on (Megatron-LM's rule), all without one. Both files are mapped and the index is
  /// checked whole: what does not fit is Error{InvalidInput} with the file and what is wrong.
  explicit TokenData(const SampleOptions& options);
  ~TokenData() override;

  void read(std::int64_t global_index, std::span<std::int32_t> tokens) const override;
  std::int64_t samples_per_epoch() const override;
  /// Tokens of the documents that are trained on.
  std::int64_t tokens() const;
  std::int64_t documents() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace foresail::runtime
