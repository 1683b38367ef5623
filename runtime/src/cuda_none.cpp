// Built where libtorch has no CUDA.
#include <ATen/ATen.h>

#include "foresail/base/error.h"
#include "foresail/runtime/cuda_device.h"

namespace foresail::runtime {
namespace {

constexpr const char* kReason = "this build has none (preset cuda)";

[[noreturn]] void refuse() {
  throw Error(ErrorCode::Unsupported, std::string("no CUDA device: ") + kReason);
}

}  // namespace

CudaSight look_for_cuda() {
  return {.devices = 0, .build = "libtorch without CUDA", .reason = kReason};
}

struct CudaDevice::Lane::State {};
struct CudaTimeline::State {};

CudaDevice::CudaDevice(int) {
  refuse();
}
CudaDevice::~CudaDevice() = default;
std::string CudaDevice::description() const {
  refuse();
}
void* CudaDevice::current() {
  refuse();
}
bool CudaDevice::is_done(void*) {
  refuse();
}
Tensor CudaDevice::make_token() {
  refuse();
}
Bytes CudaDevice::peak() const {
  refuse();
}
void CudaDevice::restart_peak() {
  refuse();
}
CudaDevice::Lane::Lane(const CudaDevice&) {
  refuse();
}
CudaDevice::Lane::~Lane() = default;
CudaTimeline::CudaTimeline(const CudaDevice&) {
  refuse();
}
CudaTimeline::~CudaTimeline() = default;
std::size_t CudaTimeline::mark() {
  refuse();
}
std::int64_t CudaTimeline::passed_ns(std::size_t) {
  refuse();
}

}  // namespace foresail::runtime
