/// \file
/// What a rank computes on: where its tensors are, how its lanes queue work, and what time it is
/// there. Lanes are host threads; on a device each has a stream of its own, and a thread runs ahead
/// of its stream.
#pragma once

#include <cstdint>
#include <memory>

#include "foresail/base/units.h"
#include "foresail/runtime/tensor.h"

namespace c10 {
struct Device;
}

namespace foresail::runtime {

/// A point in the work of a lane, behind all that has been queued: a moment on a CPU, an event in a
/// device's stream.
struct Mark {
  std::int64_t ns = 0;          ///< of the host's steady clock; of a CPU only
  std::shared_ptr<void> event;  ///< shared by all who follow it; null on a CPU
};

/// One rank's. Lanes call it from their threads at once.
class Device {
 public:
  virtual ~Device() = default;

  /// Of every tensor that a stage makes.
  virtual c10::Device place() const = 0;

  /// For the life of the result the calling thread is a lane: what it queues goes into a stream of
  /// its own. Null where there are no streams.
  class Lane {
   public:
    virtual ~Lane() = default;
  };
  virtual std::unique_ptr<Lane> open_lane() = 0;

  /// The point that the calling thread's lane has come to. Does not wait.
  virtual Mark mark() = 0;
  /// What the calling thread queues from now on runs behind `mark`, of whatever lane. Does not
  /// wait.
  virtual void follow(const Mark& mark) = 0;
  /// The calling thread's lane uses `tensor`, which another lane has made: its memory goes to
  /// nobody else before that use has ended.
  virtual void keep(const Tensor& tensor) = 0;
  /// When the device passed `mark`, in nanoseconds of the host's steady clock. Waits until it has.
  virtual std::int64_t passed_ns(const Mark& mark) = 0;

  /// Between steps, when all lanes are idle: peak() counts from here.
  virtual void begin_step() = 0;
  /// Most bytes of tensors held at once since begin_step; 0 where nobody counts.
  virtual Bytes peak() const = 0;
};

/// The host. Its peak is that of the account that is open in the calling thread (TensorMemory).
std::unique_ptr<Device> make_cpu_device();

/// Waits for all that the calling thread has queued.
inline void wait_for(Device& device) {
  device.passed_ns(device.mark());
}

}  // namespace foresail::runtime
