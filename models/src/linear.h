/// \file
/// Linear layers split over tp, with the collectives in front of or behind their GEMMs.
///
/// | split          | forward               | backward                                            |
/// |----------------|-----------------------|-----------------------------------------------------|
/// | column, no SP  | -                     | all-reduce of the input gradient                    |
/// | column, SP     | all-gather of input   | re-gather of input, reduce-scatter of its gradient  |
/// | row, no SP     | all-reduce of output  | -                                                   |
/// | row, SP        | reduce-scatter        | all-gather of the output gradient                   |
///
/// (Megatron-LM; Korthikanti et al. 2022, section 4.) Biases are added inside the GEMM kernels.
/// Pipelined, GEMMs and collectives come in parts, but for the re-gather: row_slices.h.
#pragma once

#include <string>
#include <vector>

#include "pass_kernels.h"

namespace foresail::models {

struct Linear {
  std::string name;
  std::int64_t in = 0;   ///< columns of the input on this rank
  std::int64_t out = 0;  ///< columns of the output on this rank
  DType dtype = DType::Bf16;
  bool is_pipelined = false;  ///< its collectives are cut up and run beside parts of its GEMMs
  /// Columns of the tensor that is gathered in front of it or reduced behind; 0: hidden.
  std::int64_t exchanged = 0;
  /// Rows; 0: the share's tokens.
  std::int64_t tokens = 0;
};

void column_forward(PassKernels& pass, const Linear& linear);
void row_forward(PassKernels& pass, const Linear& linear);
/// A linear layer whose neighbours hold the collectives: no communication of its own.
void plain_forward(PassKernels& pass, const Linear& linear);

/// Layers that read the same input; the input gradients are summed in the GEMMs, and the last
/// layer's name goes to the collectives.
void column_backward(PassKernels& pass, const std::vector<Linear>& linears);
void row_backward(PassKernels& pass, const Linear& linear);
void plain_backward(PassKernels& pass, const Linear& linear);

}  // namespace foresail::models
