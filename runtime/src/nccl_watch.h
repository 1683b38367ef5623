/// \file
/// Looks after operations that are queued on a device and that no thread waits for.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <list>
#include <mutex>
#include <string>
#include <thread>

namespace foresail::runtime {

class NcclConnection;
class NcclProcess;

/// A thread that asks NCCL and the store how it goes while anything is queued. When the network or
/// another rank has failed, or no operation has ended for the process's timeout, it aborts all
/// communicators, which lets the streams go on; NcclProcess::check tells whoever waited for them.
class NcclWatch {
 public:
  explicit NcclWatch(NcclProcess& process);
  ~NcclWatch();
  NcclWatch(const NcclWatch&) = delete;
  NcclWatch& operator=(const NcclWatch&) = delete;

  struct Queued {
    NcclConnection* connection = nullptr;
    std::string what;
    std::function<bool()> is_done;
  };
  void add(Queued operation);
  /// Before the connection goes.
  void forget(const NcclConnection& connection);

 private:
  using Clock = std::chrono::steady_clock;

  void run();
  void look();

  NcclProcess& process_;
  std::mutex mutex_;  // held while it looks, so that connections stay
  std::condition_variable changed_;
  std::list<Queued> queued_;
  Clock::time_point progress_;  // when the first was queued, or the last that ended was seen
  bool is_closing_ = false;
  std::thread thread_;
};

}  // namespace foresail::runtime
