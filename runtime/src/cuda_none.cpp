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

struct CudaDevice::State {};

CudaDevice::CudaDevice(int) {
  refuse();
}
CudaDevice::~CudaDevice() = default;
std::string CudaDevice::description() const {
  refuse();
}
c10::Device CudaDevice::place() const {
  refuse();
}
std::unique_ptr<Device::Lane> CudaDevice::open_lane() {
  refuse();
}
Mark CudaDevice::mark() {
  refuse();
}
void CudaDevice::follow(const Mark&) {
  refuse();
}
void CudaDevice::keep(const Tensor&) {
  refuse();
}
std::int64_t CudaDevice::passed_ns(const Mark&) {
  refuse();
}
void CudaDevice::begin_step() {
  refuse();
}
Bytes CudaDevice::peak() const {
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
std::function<bool()> CudaDevice::mark_end(void*) {
  refuse();
}
void CudaDevice::keep_for(const Tensor&, void*) {
  refuse();
}

}  // namespace foresail::runtime
