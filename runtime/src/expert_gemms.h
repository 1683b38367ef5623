/// \file
/// The GEMMs of the experts on one rank, each over its own rows.
#pragma once

#include "stage_scope.h"

namespace foresail::runtime {

/// Rows that stand by expert. With a capacity factor all experts have equally many, and their GEMMs
/// are one batch; else each expert with rows has a GEMM of its own.
struct ExpertRows {
  std::vector<std::int64_t> counts;  ///< by expert of this rank
  bool is_batched = false;

  std::int64_t first(std::int64_t expert) const;
};

/// rows W^T, [rows, in] -> [rows, out], as the kernels `<linear>`; `bias` [experts, out] or null.
at::Tensor expert_forward(OpContext& op, const std::string& linear, const ExpertRows& rows,
                          const at::Tensor& input, const Parameter& weight, const Parameter* bias);

/// grad W, as the kernels `<linear>.dgrad`.
at::Tensor expert_input_gradient(OpContext& op, const std::string& linear, const ExpertRows& rows,
                                 const at::Tensor& grad, const Parameter& weight);

/// weight.grad += grad^T input and bias.grad += sums of grad, as the kernels `<linear>.wgrad`.
void expert_weight_gradient(OpContext& op, const std::string& linear, const ExpertRows& rows,
                            const at::Tensor& grad, const at::Tensor& input,
                            const Parameter& weight, const Parameter* bias);

/// Each expert's bias [experts, out] to its rows, and the sums of their gradients to its gradient.
void add_expert_bias(const ExpertRows& rows, at::Tensor& values, const Parameter& bias);
void take_expert_bias_gradient(const ExpertRows& rows, const at::Tensor& grad,
                               const Parameter& bias);

}  // namespace foresail::runtime
