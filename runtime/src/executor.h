/// \file
/// Walks one rank's ops of the Program: one thread per lane, each lane in order, `after` between
/// lanes. It knows no schedule of its own. On a device threads wait only until what an op follows
/// has been queued; its stream waits for the rest.
#pragma once

#include <condition_variable>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "activity_board.h"
#include "foresail/program/program.h"
#include "span_log.h"
#include "worker_thread.h"

namespace foresail::runtime {

class Executor {
 public:
  struct Hooks {
    std::function<void(program::OpId)> run;
    /// Called once, in the thread of the op that failed first, while other lanes may still wait for
    /// peers: makes them come back, or ends the process.
    std::function<void(std::exception_ptr)> failed;
  };
  /// All must outlive the executor.
  Executor(const program::Program& program, RankId rank, SpanLog& log, Device& device);

  /// Runs every op once, and returns when the device has done it. Rethrows the first failure after
  /// all lanes have ended.
  void run_step(int step, const Hooks& hooks);

  /// Runs `task` in the thread of `lane`, between steps.
  void run_on(Lane lane, const std::function<void()>& task) {
    threads_.at(lane)->submit(task).get();
  }

  /// Where the lanes note what they run.
  ActivityBoard& board() { return board_; }
  Activity activity() const { return board_.look(program_, rank_); }

  /// SHA-256 over the ops of the last step as they were executed, in program order; every lane's
  /// own order was checked against the Program.
  const std::string& executed_digest() const { return executed_digest_; }
  /// Ops of the last step by lane, in the order in which they ran.
  const std::map<Lane, std::vector<program::OpId>>& executed() const { return executed_; }

 private:
  void run_lane(Lane lane, int step, const Hooks& hooks);
  bool wait_for(const program::Op& op);
  void finish(program::OpId op, const Mark& end);
  void fail(const Hooks& hooks);
  std::string digest_of_executed() const;

  const program::Program& program_;
  RankId rank_;
  SpanLog& log_;
  Device& device_;
  std::map<Lane, std::vector<program::OpId>> queues_;
  std::map<Lane, std::unique_ptr<WorkerThread>> threads_;
  std::map<Lane, std::vector<program::OpId>> executed_;
  std::string executed_digest_;

  ActivityBoard board_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<char> is_done_;  // or queued, and then `ends_` says where
  std::vector<Mark> ends_;
  std::exception_ptr failure_;
};

}  // namespace foresail::runtime
