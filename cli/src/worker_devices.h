/// \file
/// What this build sees of CUDA and NCCL, the device that a rank computes on, and what connects it.
#pragma once

#include <memory>
#include <string>

#include "foresail/runtime/cuda_device.h"
#include "foresail/runtime/gloo.h"
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

/// NCCL for ranks on CUDA devices, Gloo as `gloo` says for others (`device` null).
std::unique_ptr<runtime::Endpoint> make_endpoint(const RankEnvironment& environment,
                                                 runtime::CudaDevice* device,
                                                 const runtime::GlooEndpoint::Options& gloo);

}  // namespace foresail::cli
