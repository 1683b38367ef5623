/// \file
/// One rank's place in its job: the store, and how all ranks end when one cannot go on.
#pragma once

#include <chrono>
#include <exception>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>

#include "foresail/runtime/activity.h"
#include "foresail/runtime/store.h"
#include "worker_environment.h"

namespace foresail::cli {

/// What a rank that fails says of itself.
struct Failure {
  std::string text;
  int status = 1;             ///< 2 bad input, 1 failed run
  bool may_be_peers = false;  ///< a lost peer would look like this
};
Failure describe(const std::exception_ptr& failure);

/// Whether what a rank printed at its end says that the cause lies elsewhere.
bool blames_others(const std::string& message);

/// A run whose numbers are of no use any more ("step 3: loss is nan").
class Diverged : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// What a rank asked of the store, and how long the answers took.
struct StoreUse {
  std::int64_t operations = 0;
  std::chrono::nanoseconds time{};
};

/// A job ends as one. A rank that fails tells the others through the store: each then ends its
/// process with the cause, all with the status of the cause. A rank that was killed cannot: who
/// misses it, because a connection broke or because nothing came for `timeout`, calls the roll, and
/// who does not answer is named. A rank that still works answers and is waited for, outside of
/// steps as long as it takes. In a step, where nothing may stand still for longer than the limit
/// that `watch_steps` is told, who notices it calls the roll too, and find_hang says whom to blame.
///
/// Two threads stand by: one waits at the store, on a connection of its own, for a call of another
/// rank; one watches how long this rank's own question to the store has been open.
class Rendezvous {
 public:
  struct Options {
    RankEnvironment environment;
    std::string store{};  ///< as parse_store reads it
    std::chrono::milliseconds timeout{20'000};
  };
  /// Joins. Throws Error{Device} if the store cannot be reached within the timeout or the port is
  /// taken, Error{InvalidInput} if a process with this rank is in the job already.
  explicit Rendezvous(const Options& options);
  ~Rendezvous();
  Rendezvous(const Rendezvous&) = delete;
  Rendezvous& operator=(const Rendezvous&) = delete;

  const RankEnvironment& environment() const;
  /// Host of the store: ranks that find it on loopback find each other there.
  const std::string& store_host() const;
  /// Waits of this store have no limit of their own.
  runtime::Store& store();
  /// Since the last call.
  StoreUse take_use();

  /// What this rank does, and how long it may stand still now.
  struct StepView {
    runtime::Activity activity;
    std::chrono::milliseconds limit;
  };
  /// From now on this rank runs steps, of which `look` tells other threads.
  void watch_steps(std::function<StepView()> look);
  /// Nobody looks any more.
  void end_of_steps();

  /// If the job ends before its time, this file goes.
  void remove_on_failure(const std::filesystem::path& file);

  /// Ends all ranks, and this process.
  [[noreturn]] void fail(const std::exception_ptr& failure);
  /// The end of this rank's part. Rank 0 returns when all others have left.
  void leave();

 private:
  struct Impl;
  std::shared_ptr<Impl> impl_;  // shared with the threads, which may outlive this object
};

}  // namespace foresail::cli
