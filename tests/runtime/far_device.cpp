#include "far_device.h"

#include <ATen/ATen.h>

#include "far_memory.h"
#include "foresail/base/error.h"

namespace foresail::testing {
namespace {

using runtime::Mark;
using runtime::Tensor;

/// The calling thread's stream; 0 is that of threads that are no lanes.
thread_local std::int64_t stream = 0;

class FarLane : public runtime::Device::Lane {
 public:
  explicit FarLane(std::int64_t own) { stream = own; }
  ~FarLane() override { stream = 0; }
};

/// A number in a Mark.
std::int64_t number_of(const Mark& mark) {
  FORESAIL_EXPECT(mark.event != nullptr);
  return *static_cast<const std::int64_t*>(mark.event.get());
}

}  // namespace

c10::Device FarDevice::place() const {
  return {c10::DeviceType::PrivateUse1, static_cast<c10::DeviceIndex>(index_)};
}

std::unique_ptr<runtime::Device::Lane> FarDevice::open_lane() {
  const std::scoped_lock lock(mutex_);
  const auto own = static_cast<std::int64_t>(fronts_.size()) + 1;
  fronts_[own] = {};
  return std::make_unique<FarLane>(own);
}

Mark FarDevice::mark() {
  const std::scoped_lock lock(mutex_);
  const auto number = static_cast<std::int64_t>(points_.size());
  const std::int64_t own = own_stream();
  fronts_[own][own] = number;
  points_.push_back({own, fronts_[own]});
  return {.ns = 0, .event = std::make_shared<std::int64_t>(number)};
}

void FarDevice::follow(const Mark& mark) {
  const std::scoped_lock lock(mutex_);
  Front& own = fronts_[own_stream()];
  for (const auto& [of, number] : points_.at(static_cast<std::size_t>(number_of(mark))).front) {
    const auto [place, is_new] = own.emplace(of, number);
    if (!is_new) place->second = std::max(place->second, number);
  }
}

void FarDevice::keep(const Tensor& tensor) {
  FORESAIL_EXPECT(tensor.device() == place());
}

std::int64_t FarDevice::passed_ns(const Mark& mark) {
  return number_of(mark);
}

void FarDevice::serve_autograd() {
  const std::scoped_lock lock(mutex_);
  autograd_ = stream;
}

std::int64_t FarDevice::own_stream() const {
  return stream != 0 ? stream : autograd_;
}

bool FarDevice::is_behind(std::int64_t late, std::int64_t early) {
  const std::scoped_lock lock(mutex_);
  const Front& front = points_.at(static_cast<std::size_t>(late)).front;
  const auto found = front.find(points_.at(static_cast<std::size_t>(early)).stream);
  return found != front.end() && found->second >= early;
}

std::int64_t far_reads() {
  return far_copies_to_host();
}

}  // namespace foresail::testing
