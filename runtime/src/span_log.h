/// \file
/// Spans of one rank as they happen. Several lanes write at once.
#pragma once

#include <chrono>
#include <cstdint>
#include <mutex>
#include <vector>

#include "foresail/runtime/device.h"
#include "foresail/runtime/measurement.h"

namespace foresail::runtime {

/// Nanoseconds of this host's steady clock, the same for all its processes.
inline std::int64_t steady_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

class SpanLog {
 public:
  explicit SpanLog(Recording recording) : recording_(recording) {}
  bool is_on() const { return recording_ == Recording::On; }
  /// `span` with its bounds as marks, whose times a device may know only later.
  void add(MeasuredSpan span, const Mark& start, const Mark& end) {
    if (!is_on()) return;
    span.start_ns = start.ns;
    span.end_ns = end.ns;
    const std::scoped_lock lock(mutex_);
    if (start.event != nullptr) open_.push_back({spans_.size(), start, end});
    spans_.push_back(span);
  }
  /// Fills in the times of all marks; waits until they have been passed.
  void settle(Device& device) {
    const std::scoped_lock lock(mutex_);
    for (const Open& each : open_) {
      spans_[each.span].start_ns = device.passed_ns(each.start);
      spans_[each.span].end_ns = device.passed_ns(each.end);
    }
    open_.clear();
  }
  /// Requires that no lane is running, and that the spans are settled.
  const std::vector<MeasuredSpan>& spans() const { return spans_; }

 private:
  Recording recording_;
  /// A span that waits for its times.
  struct Open {
    std::size_t span = 0;
    Mark start, end;
  };

  std::mutex mutex_;
  std::vector<Open> open_;
  std::vector<MeasuredSpan> spans_;
};

}  // namespace foresail::runtime
