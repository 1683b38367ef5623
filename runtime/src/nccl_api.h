/// \file
/// NCCL's C interface, as far as the runtime uses it, in our own declarations: a build without the
/// CUDA Toolkit compiles the communicator, and its tests run it over a stub. Builds that find
/// nccl.h check every layout and signature against it (nccl_abi.cpp).
#pragma once

#include <climits>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

struct ncclComm;     // NCCL's
struct CUstream_st;  // CUDA's

namespace foresail::runtime {

using NcclComm = ncclComm*;
using NcclStream = CUstream_st*;

struct NcclUniqueId {
  char internal[128];
};

enum class NcclResult : int {
  Success = 0,
  UnhandledCudaError = 1,
  SystemError = 2,
  InternalError = 3,
  InvalidArgument = 4,
  InvalidUsage = 5,
  RemoteError = 6,
  InProgress = 7
};
enum class NcclType : int {
  Int8 = 0,
  Uint8 = 1,
  Int32 = 2,
  Int64 = 4,
  Float16 = 6,
  Float32 = 7,
  Float64 = 8,
  Bfloat16 = 9
};
enum class NcclReduction : int { Sum = 0, Max = 2 };

constexpr int kNcclUndefined = INT_MIN;
/// The color of a rank that joins no group of a split.
constexpr int kNcclNoColor = -1;

/// ncclConfig_t up to the fields of NCCL 2.28. A library takes as many bytes of it as it knows.
struct NcclConfig {
  std::size_t size = sizeof(NcclConfig);
  unsigned int magic = 0xcafebeef;
  unsigned int version = 22800;
  int blocking = kNcclUndefined;
  int cga_cluster_size = kNcclUndefined;
  int min_ctas = kNcclUndefined;
  int max_ctas = kNcclUndefined;
  const char* net_name = nullptr;
  int split_share = kNcclUndefined;
  int traffic_class = kNcclUndefined;
  const char* comm_name = nullptr;
  int collnet_enable = kNcclUndefined;
  int cta_policy = kNcclUndefined;
  int shrink_share = kNcclUndefined;
  int nvls_ctas = kNcclUndefined;
};

/// The functions of one library. Those marked optional are null where the library is too old.
struct NcclApi {
  NcclResult (*get_version)(int* version) = nullptr;
  NcclResult (*get_unique_id)(NcclUniqueId* id) = nullptr;
  NcclResult (*init_rank_config)(NcclComm* comm, int ranks, NcclUniqueId id, int rank,
                                 NcclConfig* config) = nullptr;
  /// Optional, since 2.23.
  NcclResult (*init_rank_scalable)(NcclComm* comm, int ranks, int rank, int ids,
                                   NcclUniqueId* first_id, NcclConfig* config) = nullptr;
  NcclResult (*split)(NcclComm comm, int color, int key, NcclComm* made,
                      NcclConfig* config) = nullptr;
  NcclResult (*finalize)(NcclComm comm) = nullptr;
  NcclResult (*destroy)(NcclComm comm) = nullptr;
  NcclResult (*abort)(NcclComm comm) = nullptr;
  NcclResult (*get_async_error)(NcclComm comm, NcclResult* error) = nullptr;
  NcclResult (*count)(NcclComm comm, int* ranks) = nullptr;
  NcclResult (*user_rank)(NcclComm comm, int* rank) = nullptr;
  const char* (*get_error_string)(NcclResult result) = nullptr;
  const char* (*get_last_error)(NcclComm comm) = nullptr;
  NcclResult (*group_start)() = nullptr;
  NcclResult (*group_end)() = nullptr;
  NcclResult (*all_reduce)(const void* input, void* output, std::size_t count, NcclType type,
                           NcclReduction reduction, NcclComm comm, NcclStream stream) = nullptr;
  NcclResult (*all_gather)(const void* input, void* output, std::size_t count, NcclType type,
                           NcclComm comm, NcclStream stream) = nullptr;
  NcclResult (*reduce_scatter)(const void* input, void* output, std::size_t count, NcclType type,
                               NcclReduction reduction, NcclComm comm, NcclStream stream) = nullptr;
  NcclResult (*broadcast)(const void* input, void* output, std::size_t count, NcclType type,
                          int root, NcclComm comm, NcclStream stream) = nullptr;
  NcclResult (*send)(const void* input, std::size_t count, NcclType type, int peer, NcclComm comm,
                     NcclStream stream) = nullptr;
  NcclResult (*recv)(void* output, std::size_t count, NcclType type, int peer, NcclComm comm,
                     NcclStream stream) = nullptr;
  /// Optional, since 2.19.
  NcclResult (*mem_alloc)(void** memory, std::size_t bytes) = nullptr;
  NcclResult (*mem_free)(void* memory) = nullptr;
  NcclResult (*register_buffer)(NcclComm comm, void* memory, std::size_t bytes,
                                void** handle) = nullptr;
  NcclResult (*deregister_buffer)(NcclComm comm, void* handle) = nullptr;

  std::string path;  ///< that it was loaded from
  int version = 0;   ///< 22809 is 2.28.9
  std::string version_text() const;
  bool can_register() const {
    return mem_alloc != nullptr && mem_free != nullptr && register_buffer != nullptr &&
           deregister_buffer != nullptr;
  }
};

/// FORESAIL_NCCL_LIBRARY, or libnccl.so.2.
std::string default_nccl_library();

/// Loads the library `name` (as dlopen finds it), which stays loaded. Throws Error{NotFound} if it
/// is not there, Error{Unsupported} if it lacks a function or is older than 2.18.
std::shared_ptr<const NcclApi> load_nccl(const std::string& name);

}  // namespace foresail::runtime
