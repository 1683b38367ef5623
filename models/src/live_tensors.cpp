#include "live_tensors.h"

#include <algorithm>
#include <utility>

namespace foresail::models {
namespace {

bool is_among(const SavedTensor& tensor, const std::vector<std::string_view>& names) {
  return std::ranges::find(names, tensor.name) != names.end();
}

}  // namespace

LiveTensors::LiveTensors(std::vector<SavedTensor> there)
    : live_(std::move(there)), peak_(live_), bytes_(sum(live_).count()), most_(bytes_) {}

void LiveTensors::make(std::string name, std::int64_t bytes) {
  if (bytes == 0) return;
  live_.push_back({std::move(name), Bytes(bytes)});
  bytes_ += bytes;
  if (bytes_ <= most_) return;
  most_ = bytes_;
  peak_ = live_;
}

void LiveTensors::drop(const std::vector<std::string_view>& names) {
  std::erase_if(live_, [&](const SavedTensor& tensor) { return is_among(tensor, names); });
  bytes_ = sum(live_).count();
}

void LiveTensors::keep(const std::vector<std::string_view>& names) {
  std::erase_if(live_, [&](const SavedTensor& tensor) { return !is_among(tensor, names); });
  bytes_ = sum(live_).count();
}

}  // namespace foresail::models
