/// \file
/// A CUDA device as the runtime sees it: the streams on which lanes queue work, times of marks in
/// them, and memory. Builds without CUDA have it too, and find no device.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "foresail/base/units.h"
#include "foresail/runtime/nccl.h"

namespace foresail::runtime {

/// What there is. `reason` says why there is none, in the words of build or driver.
struct CudaSight {
  int devices = 0;
  std::string build;  ///< "libtorch 2.15.0, CUDA 13.2", or "without CUDA"
  std::string reason;
};
CudaSight look_for_cuda();

/// One device of this process. Its memory is libtorch's caching allocator's.
class CudaDevice : public StreamSource {
 public:
  /// Throws Error{Unsupported} if there is no device `index`, with the reason.
  explicit CudaDevice(int index);
  ~CudaDevice() override;

  /// "NVIDIA H200, 139.8 GiB"
  std::string description() const;

  void* current() override;
  bool is_done(void* stream) override;
  Tensor make_token() override;

  /// Most bytes of tensors on the device since the last restart: what tensors take, as
  /// TensorMemory counts on CPUs, not what the allocator holds.
  Bytes peak() const;
  void restart_peak();

  /// For the life of the object the calling thread queues its work on a stream of its own, as a
  /// lane does.
  class Lane {
   public:
    explicit Lane(const CudaDevice& device);
    ~Lane();
    Lane(const Lane&) = delete;
    Lane& operator=(const Lane&) = delete;

   private:
    struct State;
    std::unique_ptr<State> state_;
  };

 private:
  int index_ = 0;
};

/// Times of marks in streams, on the host's steady clock. Used by one thread.
class CudaTimeline {
 public:
  /// Waits for the device once, to hold its clock against the host's.
  explicit CudaTimeline(const CudaDevice& device);
  ~CudaTimeline();

  /// Marks the place that the current stream has come to. Does not wait.
  std::size_t mark();
  /// When the device passed it, in nanoseconds; waits until it has.
  std::int64_t passed_ns(std::size_t mark);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace foresail::runtime
