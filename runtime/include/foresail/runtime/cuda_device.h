/// \file
/// A CUDA device as the runtime sees it: a stream for each lane, events as marks in them, and the
/// memory of libtorch's caching allocator. Builds without CUDA have it too, and find no device.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "foresail/base/units.h"
#include "foresail/runtime/device.h"
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
class CudaDevice : public Device, public StreamSource {
 public:
  /// Throws Error{Unsupported} if there is no device `index`, with the reason.
  explicit CudaDevice(int index);
  ~CudaDevice() override;

  /// "NVIDIA H200, 139.8 GiB"
  std::string description() const;

  c10::Device place() const override;
  std::unique_ptr<Device::Lane> open_lane() override;
  Mark mark() override;
  void follow(const Mark& mark) override;
  void keep(const Tensor& tensor) override;
  std::int64_t passed_ns(const Mark& mark) override;
  /// Holds the device's clock against the host's, too.
  void begin_step() override;
  /// What tensors take, as TensorMemory counts on CPUs, not what the allocator holds.
  Bytes peak() const override;

  void* current() override;
  bool is_done(void* stream) override;
  Tensor make_token() override;
  std::function<bool()> mark_end(void* stream) override;
  void keep_for(const Tensor& tensor, void* stream) override;

 private:
  struct State;
  int index_ = 0;
  std::unique_ptr<State> state_;
};

}  // namespace foresail::runtime
