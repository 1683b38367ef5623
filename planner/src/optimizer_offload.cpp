#include "optimizer_offload.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "foresail/base/quantity.h"

namespace foresail::planner {
namespace {

constexpr std::int64_t kPiece = std::int64_t{128} << 20;
constexpr std::int64_t kStateBytes = 12;    // fp32 parameter and two moments
constexpr std::int64_t kStateTraffic = 24;  // each read and written

std::int64_t share_of(std::int64_t parameters, std::int64_t ranks) {
  return (parameters + ranks - 1) / ranks;
}

/// What goes back to the device in another format than the host's.
std::int64_t staged_bytes(const program::Training& training) {
  const DType storage = storage_dtype(training);
  return storage == DType::Fp32 ? 0 : size_of(storage);
}

Kernel host_kernel(KernelKind kind, std::string name, std::int64_t parameters, std::int64_t each) {
  Kernel kernel;
  kernel.kind = kind;
  kernel.name = std::move(name);
  kernel.dtype = DType::Fp32;
  kernel.m = parameters;
  kernel.bytes = parameters * Bytes(each);
  return kernel;
}

}  // namespace

std::int64_t SteppedParameters::sum() const {
  return std::accumulate(chunks.begin(), chunks.end(), tied);
}

SteppedParameters stepped_parameters(const Plan& plan, const StageWork& work) {
  const bool is_sharded = plan.layout.zero_stage > 0;
  const std::int64_t ranks = is_sharded ? plan.layout.shard_ranks() : 1;
  const std::int64_t copies = is_sharded ? expert_shard_ranks(plan) : 1;
  SteppedParameters stepped;
  for (const ChunkWork& chunk : work.chunks) {
    stepped.chunks.push_back(share_of(chunk.parameters, ranks) + share_of(chunk.experts, copies));
  }
  stepped.tied = share_of(work.tied_parameters, ranks);
  return stepped;
}

SteppedParameters offloaded_parameters(const Plan& plan, const StageWork& work) {
  SteppedParameters parameters = stepped_parameters(plan, work);
  const auto scale = [&](std::int64_t& count) {
    count = static_cast<std::int64_t>(plan.layout.optimizer_offload * static_cast<double>(count));
  };
  for (std::int64_t& chunk : parameters.chunks) scale(chunk);
  scale(parameters.tied);
  return parameters;
}

Bytes host_need(const Plan& plan, const StageWork& work) {
  const std::int64_t each =
      kStateBytes + size_of(plan.training.gradient_dtype) + staged_bytes(plan.training);
  return offloaded_parameters(plan, work).sum() * Bytes(each);
}

std::string describe_host_excess(const Plan& plan, Bytes fullest) {
  const topologies::NodeSpec& node = plan.cluster.node;
  const std::int64_t ranks = std::min(node.devices, plan.layout.world_size());
  const Bytes needed = ranks * fullest;
  if (needed <= node.host.memory) return {};
  return fmt::format(
      "a host needs {} of {} for the optimizer states of {} devices (optimizer_offload {})",
      to_text(needed), to_text(node.host.memory), ranks, plan.layout.optimizer_offload);
}

OffloadKernels offload_kernels(const Plan& plan, const StageWork& work) {
  const SteppedParameters parameters = offloaded_parameters(plan, work);
  const std::int64_t gradient = size_of(plan.training.gradient_dtype);
  const std::int64_t storage = size_of(storage_dtype(plan.training));
  OffloadKernels kernels;
  for (const std::int64_t chunk : parameters.chunks) {
    kernels.gradients.push_back(
        host_kernel(KernelKind::HostCopy, "offload.gradients", chunk, gradient));
  }
  kernels.tied_gradients =
      host_kernel(KernelKind::HostCopy, "offload.gradients", parameters.tied, gradient);
  for (std::int64_t left = parameters.sum(); left > 0; left -= kPiece) {
    const std::int64_t piece = std::min(left, kPiece);
    kernels.update.push_back(host_kernel(KernelKind::HostOptimizer, "offload.update", piece,
                                         kStateTraffic + gradient + staged_bytes(plan.training)));
    kernels.parameters.push_back(
        host_kernel(KernelKind::HostCopy, "offload.parameters", piece, storage));
  }
  return kernels;
}

}  // namespace foresail::planner
