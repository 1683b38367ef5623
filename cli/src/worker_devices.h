/// \file
/// What this build sees of CUDA and NCCL.
#pragma once

#include <string>

namespace foresail::cli {

/// One line a subject: "cuda: ...", "nccl: ...".
void print_devices();

/// Refuses a device on which a run cannot train, with the reason: Error{InvalidInput} if it is
/// neither cpu nor cuda, Error{Unsupported} for cuda.
void demand_device(const std::string& device);

}  // namespace foresail::cli
