/// \file
/// A device without hardware: torch's tensors on it compute with the CPU's kernels, but their
/// addresses cannot be read by the host, as those of a GPU. What takes a tensor of it for one of
/// the CPU faults, and what mixes both throws. Lanes have streams in which no time passes; which
/// point of a stream lies behind which other is written down.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "foresail/runtime/device.h"

namespace foresail::testing {

/// How often the host has read values of the device, in the whole process.
std::int64_t far_reads();

/// Devices `index` 0 to 7. Times of marks are their numbers, which grow as the marks are made.
class FarDevice : public runtime::Device {
 public:
  explicit FarDevice(int index) : index_(index) {}

  c10::Device place() const override;
  std::unique_ptr<Lane> open_lane() override;
  runtime::Mark mark() override;
  void follow(const runtime::Mark& mark) override;
  void keep(const runtime::Tensor& tensor) override;
  std::int64_t passed_ns(const runtime::Mark& mark) override;
  void begin_step() override {}
  Bytes peak() const override { return Bytes(0); }

  /// From now on threads that are no lanes work for the calling lane, as autograd's do.
  void serve_autograd();

  /// Whether the work in front of the mark with number `early` has ended where mark `late` is
  /// passed.
  bool is_behind(std::int64_t late, std::int64_t early);

 private:
  /// By stream: the last mark of it that lies in front.
  using Front = std::map<std::int64_t, std::int64_t>;
  struct Point {
    std::int64_t stream = 0;
    Front front;
  };

  std::int64_t own_stream() const;

  int index_ = 0;
  std::int64_t autograd_ = 0;  // the stream for which autograd's threads work
  std::mutex mutex_;
  std::map<std::int64_t, Front> fronts_;  // of each stream, now
  std::vector<Point> points_;             // by mark
};

}  // namespace foresail::testing
