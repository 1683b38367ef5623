/// \file
/// What a rank may need at most: the point estimate and a margin for everything that it leaves out.
#pragma once

#include <string>
#include <vector>

#include "foresail/planner/plan.h"
#include "foresail/program/program.h"

namespace foresail::planner {

/// One thing that the point estimate leaves out.
struct MemoryMargin {
  std::string name;  ///< "messages", "kernel_temporaries", "cuda_context" ...
  Bytes bytes;
  std::string why;  ///< one sentence, with its source
};

struct MemoryBound {
  program::MemoryNeed point;
  std::vector<MemoryMargin> margins;
  Bytes upper() const;
};

/// Of `stage`. `program` must be lower(plan). Margins:
///
/// - messages: all that the pp lane may have received ahead of the passes, or not yet sent, for any
///   timing that the Program's dependencies allow, beyond those of the point estimate;
/// - row_statistics: per-row results that are kept beside the tensors (means and deviations of
///   norms, log-sum-exp of flash attention, sums of the cross-entropy), which the closed forms of
///   Korthikanti et al. leave out;
/// - batch: token ids and targets of the step;
/// - kernel_temporaries: scratch of unfused pointwise kernels, twice the widest tensor of a layer;
/// - gradients_on_their_way, parameters_on_their_way: with overlap.dp the bucket that is set aside
///   for a reduction under way, and the shard that is copied for a gather;
/// - on a GPU also cuda_context (0.6 GB), blas_workspace (32 MiB on Hopper and later, else 4 MiB),
///   nccl_buffers (4 MiB per channel and direction, 32 channels, for every communicator of more
///   than one rank) and fragmentation (a third of what the caching allocator reserves for tensors
///   that come and go, the worst that was measured on language models: Guo et al. 2024).
MemoryBound memory_bound(const Plan& plan, const program::Program& program, int stage);

/// The largest upper bound of all stages.
Bytes upper_peak(const Plan& plan, const program::Program& program);

/// "stage 0 may need 82.6 GiB of 80.0 GiB: 79.5 GiB and fragmentation 2.1 GiB, ..."; empty if the
/// upper bounds of all stages fit, or the device's memory is not known.
std::string describe_upper_excess(const Plan& plan, const program::Program& program);

}  // namespace foresail::planner
