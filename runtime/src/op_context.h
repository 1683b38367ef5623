/// \file
/// The one way by which a stage's modules issue kernels and the collectives among them. Each is
/// checked against the next kernel of the Program, so what is priced is what runs.
#pragma once

#include <ATen/ATen.h>

#include <functional>
#include <future>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "activity_board.h"
#include "foresail/program/program.h"
#include "foresail/runtime/communicator.h"
#include "foresail/runtime/device.h"
#include "span_log.h"
#include "worker_thread.h"

namespace foresail::runtime {

/// A collective that may still run on its lane.
class Pending {
 public:
  Pending() = default;
  /// `end`: where the lane has done it; there once `future` is ready.
  Pending(std::future<void> future, std::shared_ptr<const Mark> end, Device& device)
      : future_(std::move(future)), end_(std::move(end)), device_(&device) {}
  /// What the calling thread queues from now on runs behind the collective. Waits until the lane
  /// has queued it, which on a CPU is when it is done. Rethrows what it threw.
  void wait() {
    if (!future_.valid()) return;
    future_.get();
    device_->follow(*end_);
  }

 private:
  std::future<void> future_;
  std::shared_ptr<const Mark> end_;  // shared with the lane, which sets it
  Device* device_ = nullptr;
};

/// Gives every kernel a clock of its own: the device's for a Trace, the thread's CPU time to
/// calibrate.
class KernelClock {
 public:
  virtual ~KernelClock() = default;
  virtual void record(std::size_t kernel, const Mark& start, const Mark& end) = 0;
  virtual Mark now() = 0;
};

/// Who runs the collectives of one communicator inside a Compute op.
struct KernelGroup {
  Communicator* communicator = nullptr;
  WorkerThread* lane = nullptr;  ///< null: they run in the calling thread
};
/// By the communicator's name in the Program; those of one member are absent.
using KernelGroups = std::map<std::string, KernelGroup, std::less<>>;

/// The kernels of one Compute op, walked front to back.
class OpContext {
 public:
  struct Options {
    const program::KernelList* list = nullptr;
    const KernelGroups* groups = nullptr;
    Device* device = nullptr;  ///< on which the lanes of the groups run
    KernelClock* clock = nullptr;
    ActivityBoard* board = nullptr;  ///< may be null
  };
  explicit OpContext(const Options& options) : options_(options) {}

  /// Runs `work` as the next kernel, which must be called `name`.
  template <class Work>
  auto compute(std::string_view name, Work&& work) {
    const std::size_t kernel = begin(name);
    const BoardKernel noted(options_.board, kernel);
    const Timed timed(options_.clock, kernel);
    return work();
  }

  /// Collectives of the group that stands before the first point of `name`. `start_` returns at
  /// once; the tensors belong to the collective until wait(). With one member none of them may be
  /// called.
  Pending start_all_reduce(std::string_view name, at::Tensor tensor, Reduction reduction);
  /// Parts by rank along dimension 0.
  Pending start_all_gather(std::string_view name, at::Tensor input, at::Tensor output);
  Pending start_reduce_scatter(std::string_view name, at::Tensor input, at::Tensor output);
  /// Sends what `output` makes (in the lane's thread) to the next member and fills `input` from the
  /// one before.
  Pending start_exchange(std::string_view name, std::function<at::Tensor()> output,
                         at::Tensor input);

  /// Any other collective. `bytes` must be those of the Program, unless they are none because what
  /// is moved follows from the data.
  Pending start(std::string_view name, Collective kind, std::optional<std::int64_t> bytes,
                std::function<void(Communicator&)> work);

  void all_reduce(std::string_view name, at::Tensor tensor, Reduction reduction) {
    start_all_reduce(name, std::move(tensor), reduction).wait();
  }
  at::Tensor all_gather(std::string_view name, const at::Tensor& input);
  at::Tensor reduce_scatter(std::string_view name, const at::Tensor& input);
  /// Part r of `input` along dimension 0 goes to member r.
  at::Tensor all_to_all(std::string_view name, const at::Tensor& input);

  /// The numbers of experts that the kernels `<linear><suffix>`, or `<linear>.0<suffix>`,
  /// `<linear>.1<suffix>` ..., which are next in the Program, stand for.
  struct Batches {
    std::vector<std::string> names;
    std::vector<std::int64_t> experts;
  };
  Batches next_batches(const std::string& linear, const std::string& suffix) const;

  int group_size(std::string_view communicator) const;
  int group_rank(std::string_view communicator) const;
  int tp_size() const { return group_size("tp"); }
  int tp_rank() const { return group_rank("tp"); }

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
    Mark start_;
  };

  std::size_t begin(std::string_view name);
  const KernelGroup* find(std::string_view communicator) const;
  std::string full_name(std::string_view name) const;
  std::size_t begin_collective(std::string_view name, Collective kind,
                               std::optional<std::int64_t> bytes);
  std::size_t begin_collective(std::string_view name, Collective kind, const at::Tensor& whole) {
    return begin_collective(name, kind, static_cast<std::int64_t>(whole.nbytes()));
  }
  /// Runs `work` on the lane of the kernel's communicator.
  Pending run(std::size_t kernel, std::function<void(Communicator&)> work);

  Options options_;
  Phase phase_ = Phase::First;
  std::size_t next_ = 0;
};

}  // namespace foresail::runtime
