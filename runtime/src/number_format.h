/// \file
/// Arithmetic in the training's number format. Every kernel widens what it reads to fp32, computes
/// and accumulates in fp32, and rounds what it writes once, as GPUs do in 16 bits. In fp32 nothing
/// is copied.
#pragma once

#include <ATen/ATen.h>

#include "foresail/base/dtype.h"

namespace foresail::runtime {

/// Of fp32 and bf16.
at::ScalarType scalar_type(DType dtype);

/// `tensor` in fp32; itself if it is.
inline at::Tensor widened(const at::Tensor& tensor) {
  return tensor.scalar_type() == at::kFloat ? tensor : tensor.to(at::kFloat);
}
/// `tensor` in the format of `like`, to the nearest even; itself if it has it.
inline at::Tensor rounded(const at::Tensor& tensor, const at::Tensor& like) {
  return tensor.scalar_type() == like.scalar_type() ? tensor : tensor.to(like.scalar_type());
}

/// a [m, k] * b [k, n] in the format of `a`.
at::Tensor product(const at::Tensor& a, const at::Tensor& b);
/// bias [n] + a * b.
at::Tensor product(const at::Tensor& bias, const at::Tensor& a, const at::Tensor& b);
/// The same by batch.
at::Tensor batched_product(const at::Tensor& a, const at::Tensor& b);
/// target += a * b. An fp32 target accumulates in fp32.
void add_product(const at::Tensor& target, const at::Tensor& a, const at::Tensor& b);
/// target = a * b.
void set_product(const at::Tensor& target, const at::Tensor& a, const at::Tensor& b);
/// target = bias [n] + a * b.
void set_product(const at::Tensor& target, const at::Tensor& bias, const at::Tensor& a,
                 const at::Tensor& b);

}  // namespace foresail::runtime
