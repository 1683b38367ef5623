/// \file
/// What this build sees of CUDA and NCCL, and the device that a rank trains on.
#pragma once

#include <memory>
#include <string>

#include "foresail/runtime/cuda_device.h"
#include "worker_environment.h"

namespace foresail::cli {

/// One line a subject: "cuda: ...", "nccl: ...".
void print_devices();

/// Refuses what a run cannot train on: Error{InvalidInput} if `device` is neither cpu nor cuda,
/// Error{Unsupported} if it is cuda and this host has not `count` devices, which `who` needs.
void demand_devices(const std::string& device, int count, const std::string& who);

/// The CUDA device of this rank, by its local rank; null for cpu. Throws as demand_devices does.
std::unique_ptr<runtime::CudaDevice> open_device(const std::string& device,
                                                 const RankEnvironment& environment);

}  // namespace foresail::cli
