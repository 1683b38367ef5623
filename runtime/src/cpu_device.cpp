#include <ATen/ATen.h>

#include "foresail/runtime/device.h"
#include "foresail/runtime/tensor_memory.h"
#include "span_log.h"

namespace foresail::runtime {
namespace {

/// What a thread has queued is done when the call returns, so a mark is a moment.
class CpuDevice : public Device {
 public:
  c10::Device place() const override { return at::kCPU; }
  std::unique_ptr<Lane> open_lane() override { return nullptr; }
  Mark mark() override { return {.ns = steady_ns(), .event = nullptr}; }
  void follow(const Mark&) override {}
  void keep(const Tensor&) override {}
  std::int64_t passed_ns(const Mark& mark) override { return mark.ns; }
  void begin_step() override {
    if (memory_ != nullptr) memory_->restart_peak();
  }
  Bytes peak() const override { return memory_ == nullptr ? Bytes(0) : memory_->peak(); }

 private:
  std::shared_ptr<TensorMemory> memory_ = TensorMemory::current();  // shared with the tensors
};

}  // namespace

std::unique_ptr<Device> make_cpu_device() {
  return std::make_unique<CpuDevice>();
}

}  // namespace foresail::runtime
