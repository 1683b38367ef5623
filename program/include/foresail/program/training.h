/// \file
/// Batch, optimizer, precision and data of a job.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "foresail/base/dtype.h"
#include "foresail/base/names.h"

namespace foresail::program {

enum class Optimizer { Adam, Lamb };

struct Training {
  std::int64_t global_batch_size = 1;  ///< samples per step
  std::int64_t sequence_length = 1;    ///< tokens per sample
  DType precision = DType::Bf16;       ///< of parameters and activations
  /// Of accumulated and reduced gradients; fp32 is Megatron's default.
  DType gradient_dtype = DType::Fp32;
  Optimizer optimizer = Optimizer::Adam;
  double learning_rate = 3e-4;
  double clip = 1.0;  ///< global gradient norm; 0: none
  int steps = 1;
  std::string data;  ///< text, or the prefix of a .bin and .idx with tokens; empty: unnamed
  /// Shares of the documents of `data` for training, validation and test, at most these three.
  /// Empty: all documents are trained on.
  std::vector<double> data_split;
  /// Shares of the routed tokens by expert, each row summing to 1: one row for all layers with
  /// experts, or one for each of them. Empty: every expert gets equally many.
  std::vector<std::vector<double>> expert_load;
  friend bool operator==(const Training&, const Training&) = default;
};

}  // namespace foresail::program

namespace foresail {
template <>
inline constexpr auto kNames<program::Optimizer> = std::to_array<Named<program::Optimizer>>(
    {{program::Optimizer::Adam, "adam"}, {program::Optimizer::Lamb, "lamb"}});
}  // namespace foresail
