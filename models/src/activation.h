/// \file
/// Between the two matrices of an MLP, an expert or the shared experts.
#pragma once

#include <string>

#include "foresail/models/operators.h"
#include "pass_kernels.h"

namespace foresail::models {

/// Rows and widths; `prefix` stands before the names fc1.bias, activation and gate.
struct ActivationShape {
  std::string prefix;
  std::int64_t rows = 1;
  std::int64_t fc1_width = 1;
  std::int64_t ffn = 1;
};

void activation_forward(PassKernels& pass, const Model& model, const Stack& stack,
                        const ActivationShape& shape);
void activation_backward(PassKernels& pass, const Model& model, const Stack& stack,
                         const ActivationShape& shape);

}  // namespace foresail::models
