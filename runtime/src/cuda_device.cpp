// Built where libtorch has CUDA; cuda_none.cpp stands in elsewhere.
#include "foresail/runtime/cuda_device.h"

#include <ATen/ATen.h>
#include <ATen/cuda/CUDAContext.h>
#include <ATen/cuda/CUDAEvent.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>
#include <fmt/format.h>
#include <torch/version.h>

#include <cmath>
#include <functional>
#include <memory>
#include <string>

#include "foresail/base/error.h"
#include "foresail/base/quantity.h"
#include "span_log.h"

namespace foresail::runtime {
namespace {

void demand(cudaError_t result, const char* call) {
  if (result == cudaSuccess) return;
  throw Error(ErrorCode::Device, fmt::format("{}: {}", call, cudaGetErrorString(result)));
}

c10::DeviceIndex narrow(int index) {
  return static_cast<c10::DeviceIndex>(index);
}

}  // namespace

CudaSight look_for_cuda() {
  CudaSight sight;
  sight.build = fmt::format("libtorch {}, CUDA {}.{}", TORCH_VERSION, CUDART_VERSION / 1000,
                            CUDART_VERSION / 10 % 100);
  const cudaError_t result = cudaGetDeviceCount(&sight.devices);
  if (result == cudaSuccess && sight.devices > 0) return sight;
  sight.devices = 0;
  sight.reason = result == cudaSuccess ? "the driver lists none" : cudaGetErrorString(result);
  return sight;
}

/// Times count from an event that the host has seen pass. It is set anew with each step, since CUDA
/// tells the distance of events in fp32.
struct CudaDevice::State {
  using Event = at::cuda::CUDAEvent;
  /// With timing, which libtorch's events do not have unless asked for.
  static std::shared_ptr<Event> make() { return std::make_shared<Event>(cudaEventDefault); }

  std::shared_ptr<Event> origin;
  std::int64_t origin_ns = 0;
};

namespace {

/// The calling thread's stream and device, until it goes.
class CudaLane : public Device::Lane {
 public:
  explicit CudaLane(int index)
      : guard_(c10::cuda::getStreamFromPool(/*isHighPriority=*/false, narrow(index))) {}

 private:
  c10::cuda::CUDAStreamGuard guard_;
};

at::cuda::CUDAEvent& event_of(const Mark& mark) {
  FORESAIL_EXPECT(mark.event != nullptr);
  return *static_cast<at::cuda::CUDAEvent*>(mark.event.get());
}

}  // namespace

CudaDevice::CudaDevice(int index) : index_(index) {
  const CudaSight sight = look_for_cuda();
  if (index < 0 || index >= sight.devices) {
    throw Error(ErrorCode::Unsupported,
                sight.devices == 0
                    ? fmt::format("no CUDA device: {}", sight.reason)
                    : fmt::format("CUDA device {}: this host has {}", index, sight.devices));
  }
  state_ = std::make_unique<State>();
  begin_step();
}

CudaDevice::~CudaDevice() = default;

std::string CudaDevice::description() const {
  cudaDeviceProp properties{};
  demand(cudaGetDeviceProperties(&properties, index_), "cudaGetDeviceProperties");
  return fmt::format("{}, {}", properties.name,
                     to_text(Bytes(static_cast<std::int64_t>(properties.totalGlobalMem))));
}

c10::Device CudaDevice::place() const {
  return {at::kCUDA, narrow(index_)};
}

std::unique_ptr<Device::Lane> CudaDevice::open_lane() {
  return std::make_unique<CudaLane>(index_);
}

Mark CudaDevice::mark() {
  auto event = State::make();
  event->record(c10::cuda::getCurrentCUDAStream(narrow(index_)));
  return {.ns = 0, .event = std::move(event)};
}

void CudaDevice::follow(const Mark& mark) {
  event_of(mark).block(c10::cuda::getCurrentCUDAStream(narrow(index_)));
}

void CudaDevice::keep(const Tensor& tensor) {
  tensor.record_stream(c10::cuda::getCurrentCUDAStream(narrow(index_)).unwrap());
}

std::int64_t CudaDevice::passed_ns(const Mark& mark) {
  event_of(mark).synchronize();
  const double milliseconds = static_cast<double>(state_->origin->elapsed_time(event_of(mark)));
  return state_->origin_ns + std::llround(milliseconds * 1e6);
}

void CudaDevice::begin_step() {
  c10::cuda::CUDACachingAllocator::resetPeakStats(narrow(index_));
  state_->origin = State::make();
  state_->origin->record(c10::cuda::getCurrentCUDAStream(narrow(index_)));
  state_->origin->synchronize();
  state_->origin_ns = steady_ns();
}

Bytes CudaDevice::peak() const {
  using c10::CachingAllocator::StatType;
  const auto stats = c10::cuda::CUDACachingAllocator::getDeviceStats(narrow(index_));
  // What tensors asked for, before the allocator rounds it up.
  return Bytes(stats.requested_bytes[static_cast<std::size_t>(StatType::AGGREGATE)].peak);
}

void* CudaDevice::current() {
  c10::cuda::set_device(narrow(index_));
  return c10::cuda::getCurrentCUDAStream(narrow(index_)).stream();
}

bool CudaDevice::is_done(void* stream) {
  const cudaError_t result = cudaStreamQuery(static_cast<cudaStream_t>(stream));
  if (result == cudaErrorNotReady) return false;
  demand(result, "cudaStreamQuery");
  return true;
}

Tensor CudaDevice::make_token() {
  return at::zeros({1}, at::device(place()).dtype(at::kFloat));
}

std::function<bool()> CudaDevice::mark_end(void* stream) {
  auto event = std::make_shared<at::cuda::CUDAEvent>();  // shared by the copies of the question
  event->record(
      c10::cuda::getStreamFromExternal(static_cast<cudaStream_t>(stream), narrow(index_)));
  return [event] { return event->query(); };
}

void CudaDevice::keep_for(const Tensor& tensor, void* stream) {
  tensor.record_stream(
      c10::cuda::getStreamFromExternal(static_cast<cudaStream_t>(stream), narrow(index_)).unwrap());
}

}  // namespace foresail::runtime
