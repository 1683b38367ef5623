/// \file
/// Which combinations of collective, algorithm and protocol NCCL offers a group of GPUs.
#pragma once

#include "foresail/sim/nccl_tuning.h"

namespace foresail::sim {

/// Ranks of one NVLink domain that NVLS serves as heads (NCCL_MAX_NVLS_ARITY).
inline constexpr int kNvlsHeadsMax = 32;

/// Why NCCL does not offer it, as a rule for people ("PAT needs one GPU per node"); null where it
/// does. Rules of src/graph/tuning.cc (NCCL 2.30).
const char* refusal(Collective kind, topologies::Algorithm algorithm, topologies::Protocol protocol,
                    const NcclShape& shape);

}  // namespace foresail::sim
