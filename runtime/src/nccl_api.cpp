#include "nccl_api.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <cstdlib>

#include "foresail/base/error.h"

namespace foresail::runtime {
namespace {

/// The first with ncclCommSplit.
constexpr int kOldestVersion = 21800;

enum class Demand { Always, Optional };

class Loader {
 public:
  explicit Loader(const std::string& name) : name_(name) {
    handle_ = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle_ == nullptr) {
      const char* reason = dlerror();
      throw Error(ErrorCode::NotFound,
                  fmt::format("{}: NCCL cannot be loaded: {} (FORESAIL_NCCL_LIBRARY names another)",
                              name, reason == nullptr ? "no reason given" : reason));
    }
  }

  template <class Function>
  void find(Function*& function, const char* symbol, Demand demand = Demand::Always) const {
    function = reinterpret_cast<Function*>(dlsym(handle_, symbol));
    if (function == nullptr && demand == Demand::Always) {
      throw Error(ErrorCode::Unsupported, fmt::format("{}: has no {}", name_, symbol));
    }
  }

 private:
  std::string name_;
  void* handle_ = nullptr;  // never closed: NCCL leaves threads behind
};

void find_all(const Loader& library, NcclApi& api) {
  library.find(api.get_version, "ncclGetVersion");
  library.find(api.get_unique_id, "ncclGetUniqueId");
  library.find(api.init_rank_config, "ncclCommInitRankConfig");
  library.find(api.init_rank_scalable, "ncclCommInitRankScalable", Demand::Optional);
  library.find(api.split, "ncclCommSplit");
  library.find(api.finalize, "ncclCommFinalize");
  library.find(api.destroy, "ncclCommDestroy");
  library.find(api.abort, "ncclCommAbort");
  library.find(api.get_async_error, "ncclCommGetAsyncError");
  library.find(api.count, "ncclCommCount");
  library.find(api.user_rank, "ncclCommUserRank");
  library.find(api.get_error_string, "ncclGetErrorString");
  library.find(api.get_last_error, "ncclGetLastError");
  library.find(api.group_start, "ncclGroupStart");
  library.find(api.group_end, "ncclGroupEnd");
  library.find(api.all_reduce, "ncclAllReduce");
  library.find(api.all_gather, "ncclAllGather");
  library.find(api.reduce_scatter, "ncclReduceScatter");
  library.find(api.broadcast, "ncclBroadcast");
  library.find(api.send, "ncclSend");
  library.find(api.recv, "ncclRecv");
  library.find(api.mem_alloc, "ncclMemAlloc", Demand::Optional);
  library.find(api.mem_free, "ncclMemFree", Demand::Optional);
  library.find(api.register_buffer, "ncclCommRegister", Demand::Optional);
  library.find(api.deregister_buffer, "ncclCommDeregister", Demand::Optional);
}

}  // namespace

std::string NcclApi::version_text() const {
  return fmt::format("{}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

std::string default_nccl_library() {
  const char* name = std::getenv("FORESAIL_NCCL_LIBRARY");
  return name == nullptr || *name == '\0' ? "libnccl.so.2" : name;
}

std::shared_ptr<const NcclApi> load_nccl(const std::string& name) {
  const Loader library(name);
  auto api = std::make_shared<NcclApi>();  // shared by the communicators made with it
  find_all(library, *api);
  api->path = name;
  if (api->get_version(&api->version) != NcclResult::Success || api->version < kOldestVersion) {
    throw Error(ErrorCode::Unsupported,
                fmt::format("{}: NCCL {}, must be 2.18 or newer", name, api->version_text()));
  }
  return api;
}

}  // namespace foresail::runtime
