/// \file
/// The one way by which a stage's modules issue kernels and tensor-parallel collectives. Each is
/// checked against the next kernel of the Program, so what is priced is what runs.
#pragma once

#include <ATen/ATen.h>

#include <future>
#include <string>
#include <string_view>

#include "foresail/program/program.h"
#include "foresail/runtime/communicator.h"
#include "span_log.h"
#include "worker_thread.h"

namespace foresail::runtime {

/// A collective that may still run on the tp lane.
class Pending {
 public:
  Pending() = default;
  explicit Pending(std::future<void> future) : future_(std::move(future)) {}
  /// Rethrows what the collective threw.
  void wait() {
    if (future_.valid()) future_.get();
  }

 private:
  std::future<void> future_;
};

/// Gives every kernel a clock of its own: wall time for a Trace, the thread's CPU time to
/// calibrate.
class KernelClock {
 public:
  virtual ~KernelClock() = default;
  virtual void record(std::size_t kernel, std::int64_t start_ns, std::int64_t end_ns) = 0;
  virtual std::int64_t now_ns() const = 0;
};

/// The kernels of one Compute op, walked front to back.
class OpContext {
 public:
  struct Options {
    const program::KernelList* list = nullptr;
    Communicator* tp = nullptr;       ///< null if the group has one member
    WorkerThread* tp_lane = nullptr;  ///< null: collectives run in the calling thread
    KernelClock* clock = nullptr;
  };
  explicit OpContext(const Options& options) : options_(options) {}

  /// Runs `work` as the next kernel, which must be called `name`.
  template <class Work>
  auto compute(std::string_view name, Work&& work) {
    const Timed timed(options_.clock, begin(name));
    return work();
  }

  /// Collectives of the tp lane. `start_` returns at once; the tensors belong to the collective
  /// until wait(). With one member none of them may be called.
  Pending start_all_reduce(std::string_view name, at::Tensor tensor, Reduction reduction);
  /// Parts by rank along dimension 0.
  Pending start_all_gather(std::string_view name, at::Tensor input, at::Tensor output);
  Pending start_reduce_scatter(std::string_view name, at::Tensor input, at::Tensor output);

  void all_reduce(std::string_view name, at::Tensor tensor, Reduction reduction) {
    start_all_reduce(name, std::move(tensor), reduction).wait();
  }
  at::Tensor all_gather(std::string_view name, const at::Tensor& input);
  at::Tensor reduce_scatter(std::string_view name, const at::Tensor& input);

  int tp_size() const { return options_.tp == nullptr ? 1 : options_.tp->size(); }
  int tp_rank() const { return options_.tp == nullptr ? 0 : options_.tp->rank(); }

  /// While recomputing, kernels are called `<name>.recompute`.
  enum class Phase { First, Recompute };
  void set_phase(Phase phase) { phase_ = phase; }

  /// Requires that every kernel of the list has been issued.
  void finish() const;

 private:
  class Timed {
   public:
    Timed(KernelClock* clock, std::size_t kernel);
    ~Timed();
    Timed(const Timed&) = delete;
    Timed& operator=(const Timed&) = delete;

   private:
    KernelClock* clock_;
    std::size_t kernel_;
    std::int64_t start_ns_;
  };

  std::size_t begin(std::string_view name);
  std::size_t begin_collective(std::string_view name, Collective kind, const at::Tensor& whole);
  Pending run(std::size_t kernel, std::function<void()> work);

  Options options_;
  Phase phase_ = Phase::First;
  std::size_t next_ = 0;
};

}  // namespace foresail::runtime
