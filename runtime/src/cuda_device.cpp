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
#include <vector>

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

CudaDevice::CudaDevice(int index) : index_(index) {
  const CudaSight sight = look_for_cuda();
  if (index >= 0 && index < sight.devices) return;
  throw Error(ErrorCode::Unsupported,
              sight.devices == 0
                  ? fmt::format("no CUDA device: {}", sight.reason)
                  : fmt::format("CUDA device {}: this host has {}", index, sight.devices));
}

CudaDevice::~CudaDevice() = default;

std::string CudaDevice::description() const {
  cudaDeviceProp properties{};
  demand(cudaGetDeviceProperties(&properties, index_), "cudaGetDeviceProperties");
  return fmt::format("{}, {}", properties.name,
                     to_text(Bytes(static_cast<std::int64_t>(properties.totalGlobalMem))));
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
  return at::zeros({1}, at::device(at::Device(at::kCUDA, narrow(index_))).dtype(at::kFloat));
}

Bytes CudaDevice::peak() const {
  using c10::CachingAllocator::StatType;
  const auto stats = c10::cuda::CUDACachingAllocator::getDeviceStats(narrow(index_));
  // What tensors asked for, before the allocator rounds it up.
  return Bytes(stats.requested_bytes[static_cast<std::size_t>(StatType::AGGREGATE)].peak);
}

void CudaDevice::restart_peak() {
  c10::cuda::CUDACachingAllocator::resetPeakStats(narrow(index_));
}

struct CudaDevice::Lane::State {
  c10::cuda::CUDAStreamGuard guard;
};

CudaDevice::Lane::Lane(const CudaDevice& device)
    : state_(new State{c10::cuda::CUDAStreamGuard(
          c10::cuda::getStreamFromPool(/*isHighPriority=*/false, narrow(device.index_)))}) {}

CudaDevice::Lane::~Lane() = default;

struct CudaTimeline::State {
  /// With timing, which libtorch's events do not have unless asked for.
  static at::cuda::CUDAEvent make() { return at::cuda::CUDAEvent(cudaEventDefault); }

  at::cuda::CUDAEvent origin = make();
  std::int64_t origin_ns = 0;
  std::vector<at::cuda::CUDAEvent> marks;
};

CudaTimeline::CudaTimeline(const CudaDevice&) : state_(std::make_unique<State>()) {
  state_->origin.record();
  state_->origin.synchronize();
  state_->origin_ns = steady_ns();
}

CudaTimeline::~CudaTimeline() = default;

std::size_t CudaTimeline::mark() {
  state_->marks.push_back(State::make());
  state_->marks.back().record();
  return state_->marks.size() - 1;
}

std::int64_t CudaTimeline::passed_ns(std::size_t mark) {
  at::cuda::CUDAEvent& event = state_->marks.at(mark);
  event.synchronize();
  const double milliseconds = static_cast<double>(state_->origin.elapsed_time(event));
  return state_->origin_ns + std::llround(milliseconds * 1e6);
}

}  // namespace foresail::runtime
