/// \file
/// Spans of one rank as they happen. Several lanes write at once.
#pragma once

#include <chrono>
#include <cstdint>
#include <mutex>
#include <vector>

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
  void add(const MeasuredSpan& span) {
    if (recording_ == Recording::Off) return;
    const std::scoped_lock lock(mutex_);
    spans_.push_back(span);
  }
  /// Requires that no lane is running.
  const std::vector<MeasuredSpan>& spans() const { return spans_; }

 private:
  Recording recording_;
  std::mutex mutex_;
  std::vector<MeasuredSpan> spans_;
};

}  // namespace foresail::runtime
