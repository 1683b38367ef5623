/// \file
/// One in-order queue of tasks with a thread of its own, and with a stream on a device: a lane.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <future>
#include <mutex>
#include <thread>

#include "foresail/runtime/device.h"

namespace foresail::runtime {

class WorkerThread {
 public:
  /// `device` must outlive it.
  explicit WorkerThread(Device& device);
  /// Runs what is queued, then ends.
  ~WorkerThread();
  WorkerThread(const WorkerThread&) = delete;
  WorkerThread& operator=(const WorkerThread&) = delete;

  /// Queues `task`. The future holds what it threw.
  std::future<void> submit(std::function<void()> task);

 private:
  void run(Device& device);

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::packaged_task<void()>> tasks_;
  bool is_closing_ = false;
  std::thread thread_;
};

/// Every thread that computes calls this once: one process computes on one core, so that results
/// and times do not depend on how many cores the host has.
void use_one_core();

}  // namespace foresail::runtime
