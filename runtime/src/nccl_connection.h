/// \file
/// One NCCL communicator as a state machine: calls that return at once, polls until they are done,
/// and an end for all communicators of the process when one has failed.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "foresail/runtime/nccl.h"
#include "nccl_api.h"
#include "nccl_watch.h"

namespace foresail::runtime {

class NcclConnection;

/// What the communicators of one process share.
class NcclProcess {
 public:
  struct Options {
    std::shared_ptr<const NcclApi> api;  // shared with the connections
    StreamSource* streams = nullptr;
    Store* store = nullptr;
    int rank = 0;
    std::chrono::milliseconds timeout{}, flag_interval{};
  };
  explicit NcclProcess(const Options& options) : options_(options) {}

  const Options& options() const { return options_; }
  const NcclApi& api() const { return *options_.api; }

  void add(NcclConnection& connection);
  void remove(NcclConnection& connection);

  /// Tells the other ranks, unless one of them has failed before (then its message is the cause),
  /// aborts every communicator of this process and throws Error{Device}.
  [[noreturn]] void fail(const std::string& message);
  /// The same for a failure outside NCCL, without throwing.
  void stop(const std::string& reason);
  /// Throws, after aborting everything, if another rank has failed.
  void look_for_failures();
  /// Aborts every communicator of this process; more calls change nothing.
  void abort_all(const std::string& reason);
  /// Throws Error{Device} if everything has been aborted.
  void check();
  /// Of operations that are queued. Made with the first.
  NcclWatch& watch();

 private:
  /// Tells the other ranks. Returns what another rank has said before, if one has.
  std::string announce(const std::string& message);
  std::string cause_elsewhere();

  Options options_;
  std::mutex mutex_;
  std::vector<NcclConnection*> connections_;
  std::string failure_;               // why everything has been aborted
  std::unique_ptr<NcclWatch> watch_;  // last: its thread uses the others
};

/// Used by one thread at a time; the process's end may come from any. NCCL allows no two threads
/// inside one communicator, so every call into the library holds a lock, and waits do not.
class NcclConnection {
 public:
  NcclConnection(std::shared_ptr<NcclProcess> process, std::string name);
  /// Finalizes and destroys, or leaves what is aborted alone.
  ~NcclConnection();
  NcclConnection(const NcclConnection&) = delete;
  NcclConnection& operator=(const NcclConnection&) = delete;

  /// Makes the communicator by `init` and waits until it is there.
  void open(const std::function<NcclResult(NcclComm*)>& init);
  /// Its part of a split, in which all members of this communicator take part: `into` receives the
  /// new one; null for a rank that joins no group.
  void split(int color, int key, NcclConnection* into, NcclConfig* config);
  /// Queues an operation on the current stream. Where streams have no marks, waits until the device
  /// has done it; else NcclWatch looks after it.
  using Call = std::function<NcclResult(NcclComm, NcclStream)>;
  void run(const std::string& what, std::size_t bytes, const Call& call);
  /// Waits until the device has done what is queued on the current stream.
  void finish(const std::string& what);
  /// Throws, after aborting everything, what has gone wrong in the communicator.
  void look(const std::string& what) { poll(what); }

  /// Runs a call that is done when it returns.
  void ask(const std::string& what, const std::function<NcclResult(NcclComm)>& call);
  /// The same, but does nothing if the communicator is gone; a failure ends all ranks, not this.
  void ask_at_the_end(const char* what, const std::function<NcclResult(NcclComm)>& call) noexcept;

  const std::string& name() const { return name_; }
  NcclProcess& process() { return *process_; }
  const std::shared_ptr<NcclProcess>& shared_process() const { return process_; }

 private:
  friend class NcclProcess;
  using Clock = std::chrono::steady_clock;

  /// Throws if the communicator has been aborted.
  void demand_alive(const std::string& what) const;
  /// What NCCL answers to a poll.
  NcclResult poll(const std::string& what);
  /// Throws for every answer but Success and InProgress.
  void judge(const std::string& what, NcclResult result);
  void wait_until_issued(const std::string& what);
  /// Calls `is_done` with pauses, looks for failures elsewhere, and fails after the timeout.
  void wait(const std::string& what, const std::function<bool()>& is_done);
  std::string explain(NcclResult result);
  void close() noexcept;

  std::shared_ptr<NcclProcess> process_;  // shared by all connections and the endpoint
  std::string name_;
  std::mutex mutex_;  // held inside the library
  NcclComm comm_ = nullptr;
  NcclComm made_ = nullptr;  // where NCCL's threads write the handle of a split
  bool is_watched_ = false;
  bool is_aborted_ = false;  // under mutex_
  std::string reason_;       // of the abort
};

/// Runs calls as one NCCL group; the first that is refused counts, and the group is closed anyway.
NcclResult run_group(const NcclApi& api, const std::vector<std::function<NcclResult()>>& calls);

}  // namespace foresail::runtime
