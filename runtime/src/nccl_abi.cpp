// Holds our declarations of NCCL's interface against nccl.h, at compile time. Built where the CUDA
// Toolkit and NCCL's header are found.
#include <nccl.h>

#include <cstddef>
#include <type_traits>

#include "nccl_api.h"

namespace foresail::runtime {
namespace {

// Arguments and results are passed alike: the same handles, pointers and sizes, integers for enums.
template <class T>
struct Passed {
  using Type = T;
};
template <class T>
requires std::is_enum_v<T>
struct Passed<T> {
  static_assert(sizeof(T) == sizeof(int));
  using Type = int;
};
template <>
struct Passed<ncclUniqueId> {
  using Type = NcclUniqueId;
};
template <class T>
struct Passed<T*> {
  using Type = typename Passed<T>::Type*;
};
template <>
struct Passed<ncclConfig_t*> {
  using Type = NcclConfig*;
};

template <class Function>
struct Signature;
template <class Result, class... Arguments>
struct Signature<Result (*)(Arguments...)> {
  using Type = typename Passed<Result>::Type(typename Passed<Arguments>::Type...);
};

template <class Ours, class Theirs>
constexpr bool is_same_call =
    std::is_same_v<typename Signature<Ours>::Type, typename Signature<Theirs>::Type>;

#define FORESAIL_SAME_CALL(member, symbol) \
  static_assert(is_same_call<decltype(NcclApi::member), decltype(&symbol)>)

FORESAIL_SAME_CALL(get_version, ncclGetVersion);
FORESAIL_SAME_CALL(get_unique_id, ncclGetUniqueId);
FORESAIL_SAME_CALL(init_rank_config, ncclCommInitRankConfig);
FORESAIL_SAME_CALL(init_rank_scalable, ncclCommInitRankScalable);
FORESAIL_SAME_CALL(split, ncclCommSplit);
FORESAIL_SAME_CALL(finalize, ncclCommFinalize);
FORESAIL_SAME_CALL(destroy, ncclCommDestroy);
FORESAIL_SAME_CALL(abort, ncclCommAbort);
FORESAIL_SAME_CALL(get_async_error, ncclCommGetAsyncError);
FORESAIL_SAME_CALL(count, ncclCommCount);
FORESAIL_SAME_CALL(user_rank, ncclCommUserRank);
FORESAIL_SAME_CALL(get_error_string, ncclGetErrorString);
FORESAIL_SAME_CALL(get_last_error, ncclGetLastError);
FORESAIL_SAME_CALL(group_start, ncclGroupStart);
FORESAIL_SAME_CALL(group_end, ncclGroupEnd);
FORESAIL_SAME_CALL(all_reduce, ncclAllReduce);
FORESAIL_SAME_CALL(all_gather, ncclAllGather);
FORESAIL_SAME_CALL(reduce_scatter, ncclReduceScatter);
FORESAIL_SAME_CALL(broadcast, ncclBroadcast);
FORESAIL_SAME_CALL(send, ncclSend);
FORESAIL_SAME_CALL(recv, ncclRecv);
FORESAIL_SAME_CALL(mem_alloc, ncclMemAlloc);
FORESAIL_SAME_CALL(mem_free, ncclMemFree);
FORESAIL_SAME_CALL(register_buffer, ncclCommRegister);
FORESAIL_SAME_CALL(deregister_buffer, ncclCommDeregister);

#define FORESAIL_SAME_PLACE(member, field) \
  static_assert(offsetof(NcclConfig, member) == offsetof(ncclConfig_t, field))

FORESAIL_SAME_PLACE(size, size);
FORESAIL_SAME_PLACE(magic, magic);
FORESAIL_SAME_PLACE(version, version);
FORESAIL_SAME_PLACE(blocking, blocking);
FORESAIL_SAME_PLACE(cga_cluster_size, cgaClusterSize);
FORESAIL_SAME_PLACE(min_ctas, minCTAs);
FORESAIL_SAME_PLACE(max_ctas, maxCTAs);
FORESAIL_SAME_PLACE(net_name, netName);
FORESAIL_SAME_PLACE(split_share, splitShare);
FORESAIL_SAME_PLACE(traffic_class, trafficClass);
FORESAIL_SAME_PLACE(comm_name, commName);
FORESAIL_SAME_PLACE(collnet_enable, collnetEnable);
FORESAIL_SAME_PLACE(cta_policy, CTAPolicy);
FORESAIL_SAME_PLACE(shrink_share, shrinkShare);
FORESAIL_SAME_PLACE(nvls_ctas, nvlsCTAs);
constexpr ncclConfig_t kUntouched = NCCL_CONFIG_INITIALIZER;
static_assert(NcclConfig{}.magic == kUntouched.magic);
static_assert(NcclConfig{}.blocking == NCCL_CONFIG_UNDEF_INT);
static_assert(sizeof(NcclUniqueId) == NCCL_UNIQUE_ID_BYTES);
static_assert(sizeof(NcclConfig) <= sizeof(ncclConfig_t));

#define FORESAIL_SAME_VALUE(ours, theirs) \
  static_assert(static_cast<int>(ours) == static_cast<int>(theirs))

FORESAIL_SAME_VALUE(NcclResult::Success, ncclSuccess);
FORESAIL_SAME_VALUE(NcclResult::SystemError, ncclSystemError);
FORESAIL_SAME_VALUE(NcclResult::InvalidUsage, ncclInvalidUsage);
FORESAIL_SAME_VALUE(NcclResult::RemoteError, ncclRemoteError);
FORESAIL_SAME_VALUE(NcclResult::InProgress, ncclInProgress);
FORESAIL_SAME_VALUE(NcclType::Int8, ncclInt8);
FORESAIL_SAME_VALUE(NcclType::Uint8, ncclUint8);
FORESAIL_SAME_VALUE(NcclType::Int32, ncclInt32);
FORESAIL_SAME_VALUE(NcclType::Int64, ncclInt64);
FORESAIL_SAME_VALUE(NcclType::Float16, ncclFloat16);
FORESAIL_SAME_VALUE(NcclType::Float32, ncclFloat32);
FORESAIL_SAME_VALUE(NcclType::Float64, ncclFloat64);
FORESAIL_SAME_VALUE(NcclType::Bfloat16, ncclBfloat16);
FORESAIL_SAME_VALUE(NcclReduction::Sum, ncclSum);
FORESAIL_SAME_VALUE(NcclReduction::Max, ncclMax);
FORESAIL_SAME_VALUE(kNcclUndefined, NCCL_CONFIG_UNDEF_INT);
FORESAIL_SAME_VALUE(kNcclNoColor, NCCL_SPLIT_NOCOLOR);

}  // namespace
}  // namespace foresail::runtime
