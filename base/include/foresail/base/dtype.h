/// \file
/// Number formats of tensors.
#pragma once

#include <cstdint>

#include "foresail/base/names.h"

namespace foresail {

enum class DType { Fp32, Bf16, Fp16, Fp8, Int64 };

template <>
inline constexpr auto kNames<DType> = std::to_array<Named<DType>>({{DType::Fp32, "fp32"},
                                                                   {DType::Bf16, "bf16"},
                                                                   {DType::Fp16, "fp16"},
                                                                   {DType::Fp8, "fp8"},
                                                                   {DType::Int64, "int64"}});

/// Bytes of one element.
constexpr std::int64_t size_of(DType dtype) {
  switch (dtype) {
    case DType::Fp32:
      return 4;
    case DType::Bf16:
    case DType::Fp16:
      return 2;
    case DType::Fp8:
      return 1;
    case DType::Int64:
      return 8;
  }
  return 0;
}

}  // namespace foresail
