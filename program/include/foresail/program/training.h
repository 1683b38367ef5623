/// \file
/// Batch, optimizer, precision and data of a job.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "foresail/base/dtype.h"
#include "foresail/base/names.h"

namespace foresail::program {

/// AdamW: weight decay apart from the moments (Loshchilov 2019). Lamb: the same update, by matrix
/// as long as learning_rate times the matrix (You et al. 2020).
enum class Optimizer { Adam, AdamW, Lamb };

/// How the learning rate falls behind the warm-up (Megatron-LM's --lr-decay-style).
enum class LearningRateDecay { Constant, Linear, Cosine };

struct Training {
  std::int64_t global_batch_size = 1;  ///< samples per step
  std::int64_t sequence_length = 1;    ///< tokens per sample
  DType precision = DType::Bf16;       ///< of parameters and activations
  /// Of accumulated and reduced gradients; fp32 is Megatron's default.
  DType gradient_dtype = DType::Fp32;
  Optimizer optimizer = Optimizer::Adam;
  double learning_rate = 3e-4;   ///< highest; see learning_rate_at
  double learning_rate_min = 0;  ///< at decay_steps and behind
  LearningRateDecay learning_rate_decay = LearningRateDecay::Constant;
  int warmup_steps = 0;
  int decay_steps = 0;      ///< warm-up included; unused if the rate is constant
  double weight_decay = 0;  ///< of matrices, not of biases and norms; AdamW and LAMB
  double clip = 1.0;        ///< global gradient norm; 0: none
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

/// The rate of step `step` >= 0, by Megatron-LM's rule (OptimizerParamScheduler): with `step` steps
/// done, step / warmup_steps of learning_rate up to warmup_steps, so that the first step of a
/// warm-up moves nothing; then down to learning_rate_min at decay_steps.
double learning_rate_at(const Training& training, int step);

}  // namespace foresail::program

namespace foresail {
template <>
inline constexpr auto kNames<program::Optimizer> =
    std::to_array<Named<program::Optimizer>>({{program::Optimizer::Adam, "adam"},
                                              {program::Optimizer::AdamW, "adamw"},
                                              {program::Optimizer::Lamb, "lamb"}});
template <>
inline constexpr auto kNames<program::LearningRateDecay> =
    std::to_array<Named<program::LearningRateDecay>>(
        {{program::LearningRateDecay::Constant, "constant"},
         {program::LearningRateDecay::Linear, "linear"},
         {program::LearningRateDecay::Cosine, "cosine"}});
}  // namespace foresail
