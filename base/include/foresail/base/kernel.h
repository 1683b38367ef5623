/// \file
/// The unit of work that a cost model prices and a torch module issues. Kernels stand in `base`
/// because `models` describes layers with them and `program` carries them to simulator and runtime.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "foresail/base/dtype.h"
#include "foresail/base/names.h"
#include "foresail/base/units.h"

namespace foresail {

/// In-order queues of one rank. On a GPU a stream, in the simulator a queue, on a CPU a thread.
/// Replica: sums of shards that several groups hold (PyTorch gives them a stream of their own).
/// Copy: copies between device and host memory.
enum class Lane { Compute, Tp, Cp, Ep, Pp, Dp, Host, Replica, Copy };
inline constexpr int kLaneCount = 9;

enum class KernelKind {
  Gemm,         ///< batch x (m x n x k)
  Attention,    ///< fused core attention (flash): heads, sequences, head size
  Norm,         ///< LayerNorm or RMSNorm, forward or backward
  Elementwise,  ///< anything bound by memory: activation, bias-dropout-add, softmax, rotary, copies
  Embedding,    ///< table lookup or its scatter-add
  CrossEntropy,  ///< local part of the vocabulary-parallel loss
  Optimizer,     ///< parameter update and gradient norm
  Collective,    ///< a collective inside a layer (tp, cp or ep lane)
  HostCopy,      ///< between device and host memory; bytes: those that cross
  HostOptimizer  ///< parameter update by the host; bytes: read and written in host memory
};

/// SendRecv: every rank sends to the next of its group and receives from the one before
/// (nccl-tests: sendrecv).
enum class Collective { AllReduce, AllGather, ReduceScatter, Broadcast, AllToAll, SendRecv };

/// One kernel of a pass, after all splits: shapes are those that one rank runs.
struct Kernel {
  KernelKind kind = KernelKind::Elementwise;
  /// What it does, unique within a layer and direction: "qkv", "qkv.dgrad", "qkv.wgrad",
  /// "attention.scores", "norm1", "tp.gather_qkv" ...
  std::string name;
  DType dtype = DType::Bf16;

  /// Gemm: C[m,n] (+)= A[m,k] B[k,n], `batch` times. For wgrad m = out features, n = in features,
  /// k = tokens.
  std::int64_t batch = 1;
  std::int64_t m = 0;
  std::int64_t n = 0;
  std::int64_t k = 0;
  /// Gemm only: the whole GEMM has about so many times the rows (m) of this part of it. Parts run
  /// on several streams so that the last tiles of one overlap the first of the next (Transformer
  /// Engine's userbuffers): they take the time of the whole.
  std::int64_t parts = 1;

  /// Attention (kind Attention only): local heads, query and key/value positions per sample, head
  /// size, samples; backward runs 2.5 times the forward's FLOPs.
  std::int64_t heads = 0;
  std::int64_t query_length = 0;
  std::int64_t key_length = 0;
  std::int64_t head_size = 0;
  bool is_backward = false;
  /// Attention only: scores that dropout draws a random number for within the fused kernel.
  std::int64_t draws = 0;

  /// Work: FLOPs executed (causal skipping included where the kernel skips), and bytes read plus
  /// written in device memory. For a GEMM or attention the operands once each.
  Flops flops;
  /// For Collective: the size in nccl-tests' convention (per-rank buffer of all_reduce, broadcast
  /// and send_recv, total size of all_gather and reduce_scatter, the send buffer of all_to_all).
  Bytes bytes;

  /// Collective only.
  Collective collective = Collective::AllReduce;
  Lane lane = Lane::Compute;
  /// Indices into the same kernel list that must have finished before this one starts, beyond the
  /// order of its own lane. A compute kernel that needs a collective's result lists it here; one
  /// that does not list it may run beside it. At the end of the list everything is waited for.
  std::vector<int> after;

  friend bool operator==(const Kernel&, const Kernel&) = default;
};

template <>
inline constexpr auto kNames<Lane> = std::to_array<Named<Lane>>({{Lane::Compute, "compute"},
                                                                 {Lane::Tp, "tp"},
                                                                 {Lane::Cp, "cp"},
                                                                 {Lane::Ep, "ep"},
                                                                 {Lane::Pp, "pp"},
                                                                 {Lane::Dp, "dp"},
                                                                 {Lane::Host, "host"},
                                                                 {Lane::Replica, "replica"},
                                                                 {Lane::Copy, "copy"}});
template <>
inline constexpr auto kNames<KernelKind> =
    std::to_array<Named<KernelKind>>({{KernelKind::Gemm, "gemm"},
                                      {KernelKind::Attention, "attention"},
                                      {KernelKind::Norm, "norm"},
                                      {KernelKind::Elementwise, "elementwise"},
                                      {KernelKind::Embedding, "embedding"},
                                      {KernelKind::CrossEntropy, "cross_entropy"},
                                      {KernelKind::Optimizer, "optimizer"},
                                      {KernelKind::Collective, "collective"},
                                      {KernelKind::HostCopy, "host_copy"},
                                      {KernelKind::HostOptimizer, "host_optimizer"}});
template <>
inline constexpr auto kNames<Collective> =
    std::to_array<Named<Collective>>({{Collective::AllReduce, "all_reduce"},
                                      {Collective::AllGather, "all_gather"},
                                      {Collective::ReduceScatter, "reduce_scatter"},
                                      {Collective::Broadcast, "broadcast"},
                                      {Collective::AllToAll, "all_to_all"},
                                      {Collective::SendRecv, "send_recv"}});

}  // namespace foresail
