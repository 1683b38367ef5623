/// \file
/// Time of one kernel on one device: a roofline whose compute roof follows a smooth curve in the
/// GEMM's shape (tiles, waves, loss per k), with the constants of topologies::CostConstants.
/// Functional forms: facts/step-time model; every function is pure.
#pragma once

#include "foresail/base/kernel.h"
#include "foresail/topologies/device.h"

namespace foresail::sim {

/// Seconds of a GEMM on a GPU: the best of a few tile shapes,
///   waves * tile_m * tile_n * 2 (k + k0) / (peak / SMs * eff),
/// waves = w + q (ceil(w) - w), w = tiles / SMs; joined with bytes / (HBM * eff) by a p-norm (p=4).
/// One of several parts takes its share of the whole GEMM's time (Kernel::parts).
double gemm_seconds(const Kernel& kernel, const topologies::DeviceSpec& device);

/// Seconds of fused attention: FLOPs / (peak_16 * eff * s / (s + s0)); the backward's rate is a
/// fixed multiple of the forward's. s is the contiguous query length (half of it under zigzag
/// context parallelism).
double attention_seconds(const Kernel& kernel, const topologies::DeviceSpec& device);

/// Seconds of a kernel bound by memory: bytes / (HBM * eff).
double memory_seconds(const Kernel& kernel, const topologies::DeviceSpec& device);

/// Seconds of any kernel that runs on the device alone (neither a collective nor the host's),
/// launch included.
double kernel_seconds(const Kernel& kernel, const topologies::DeviceSpec& device);

}  // namespace foresail::sim
