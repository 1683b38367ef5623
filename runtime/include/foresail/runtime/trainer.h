/// \file
/// One rank's training: groups, weights, and steps that follow the Program.
#pragma once

#include <cstdint>
#include <exception>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "foresail/base/id.h"
#include "foresail/runtime/activity.h"
#include "foresail/runtime/communicator.h"
#include "foresail/runtime/device.h"
#include "foresail/runtime/job.h"
#include "foresail/runtime/measurement.h"
#include "foresail/runtime/sample_source.h"
#include "foresail/runtime/store.h"

namespace foresail::runtime {

class Trainer {
 public:
  struct Options {
    const Job* job = nullptr;
    RankId rank;
    Store* store = nullptr;
    const Endpoint* endpoint = nullptr;
    BatchSource* data = nullptr;  ///< may be null on a rank that loads no batch
    Device* device = nullptr;     ///< where the rank computes; null: on the CPU
    Recording recording = Recording::On;
    /// Called with the first failure of a step as soon as it happens. A rank whose other lanes wait
    /// for peers in a collective gets them back only after the endpoint's timeout, so a process
    /// that has no other work ends itself here. May be empty.
    std::function<void(std::exception_ptr)> failed{};
    /// Called when this rank's groups are connected, before its weights are made. May be empty.
    std::function<void()> connected{};
  };
  /// Connects this rank's groups in the order of the Program's declaration and makes its weights.
  /// Everything that `options` points to must outlive the trainer. Throws Error{Unsupported} for
  /// what check_supported refuses.
  explicit Trainer(const Options& options);
  ~Trainer();
  Trainer(const Trainer&) = delete;
  Trainer& operator=(const Trainer&) = delete;

  /// All ranks must call it equally often. After an exception the trainer is dead.
  StepSummary run_step();

  /// Puts the file's weights in the place of the initial ones, before the first step. Throws what
  /// check_weights does.
  void read_weights(const std::filesystem::path& path);
  /// Writes this rank's part of the weights into the file that create_weights made. When all ranks
  /// have, it is whole, and the same for every layout.
  void write_weights(const std::filesystem::path& path) const;

  /// What this rank does now. May be called from any thread.
  Activity activity() const;

  /// What has been recorded so far.
  const std::vector<MeasuredSpan>& spans() const;

  /// Ops of the last step by lane, in the order in which they ran.
  const std::map<Lane, std::vector<program::OpId>>& executed() const;

  /// Runs `task` in the thread that runs the Compute ops (for tests that watch torch).
  void run_on_compute_lane(const std::function<void()>& task);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace foresail::runtime
