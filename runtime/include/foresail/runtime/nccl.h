/// \file
/// Communicators of NCCL, for CUDA devices. The library is loaded at run time.
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "foresail/runtime/communicator.h"
#include "foresail/runtime/store.h"
#include "foresail/runtime/tensor.h"

namespace foresail::runtime {

/// Where NCCL queues its work: on the stream that is current in the calling thread, behind what
/// torch has queued there.
class StreamSource {
 public:
  virtual ~StreamSource() = default;
  /// The cudaStream_t, with this rank's device made current in the thread.
  virtual void* current() = 0;
  /// Whether everything queued on `stream` so far is done. Throws Error{Device} if the device has
  /// failed.
  virtual bool is_done(void* stream) = 0;
  /// One fp32 zero in the device's memory.
  virtual Tensor make_token() = 0;
  /// Asks whether all that is queued on `stream` now is done; may be called from any thread. Empty
  /// where streams cannot say it: whoever queues there waits until all is done.
  virtual std::function<bool()> mark_end(void* stream);
  /// The memory of `tensor` goes to nobody else before what is queued on `stream` now is done.
  virtual void keep_for(const Tensor& tensor, void* stream);
};

/// What one kind of group asks of NCCL; what is absent NCCL chooses.
struct NcclGroupOptions {
  std::optional<int> min_ctas, max_ctas;  ///< thread blocks per collective
  std::optional<int> cga_cluster_size;    ///< thread blocks per cluster, on Hopper and newer
  std::optional<int> traffic_class;       ///< of its packets on RoCE and InfiniBand
  std::string net_name;                   ///< "IB", "Socket" or a plugin's
  friend bool operator==(const NcclGroupOptions&, const NcclGroupOptions&) = default;
};
using NcclGroups = std::map<std::string, NcclGroupOptions>;

/// "dp:max_ctas=16,traffic_class=105" or "*:net=IB", for groups that are not named. Throws
/// Error{InvalidInput}.
void add_group_options(NcclGroups& groups, const std::string& text);

/// Whether buffers that collectives use again and again are registered (ncclCommRegister).
enum class BufferRegistration { Off, On };

/// "libnccl.so.2: 2.28.9" of the library that an endpoint would load. Throws as it does.
std::string describe_nccl();

/// One process's end: a communicator of all ranks, which is made at the first turn, and those that
/// are split from it. A failure on one rank ends all: the rank that sees it first says so through
/// the store and aborts its communicators, and every wait of the others looks there.
class NcclEndpoint : public Endpoint {
 public:
  struct Options {
    int rank = 0;
    int world_size = 1;
    StreamSource* streams = nullptr;  ///< must outlive the endpoint
    std::string library{};            ///< empty: FORESAIL_NCCL_LIBRARY, else libnccl.so.2
    /// After which a wait for peers fails; NCCL itself waits for ever.
    std::chrono::milliseconds timeout{std::chrono::minutes(10)};
    /// How often a wait asks the store whether another rank has failed.
    std::chrono::milliseconds flag_interval{500};
    /// Ranks that bootstrap through one unique id. A job of more ranks has several
    /// (ncclCommInitRankScalable), because one id's root serves its ranks one by one.
    int ranks_per_id = 256;
    NcclGroups groups{};
    BufferRegistration registration = BufferRegistration::Off;
  };
  /// Loads the library. Throws Error{NotFound} or Error{Unsupported} if it cannot be used.
  explicit NcclEndpoint(const Options& options);
  ~NcclEndpoint() override;

  /// All ranks of the job take part in each turn.
  std::unique_ptr<Communicator> connect(const Group& group, Store& store) const override;
  void stand_by(const std::string& kind, Store& store) const override;
  void check() const override;
  void report_failure(const std::string& reason) const override;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace foresail::runtime
