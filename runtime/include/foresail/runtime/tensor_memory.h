/// \file
/// Bytes of the CPU tensors that a rank holds, counted by an allocator of our own: what tensors ask
/// for, not what the process has (resident memory also holds libraries, freed memory that malloc
/// keeps, and buffers of Gloo and OpenBLAS).
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "foresail/base/units.h"

namespace foresail::runtime {

/// One rank's account. A tensor belongs to the account that was open in the thread that made it,
/// until it is freed in whatever thread. Several threads may book at once.
class TensorMemory {
 public:
  /// Puts the counting allocator in the place of libtorch's for CPU tensors. Tensors that exist
  /// already are not counted. Call it at the start of the process, while no other thread makes
  /// tensors; more calls change nothing.
  static void count();
  static bool is_counting();

  Bytes live() const { return Bytes(live_.load()); }
  Bytes peak() const { return Bytes(peak_.load()); }
  /// From now on peak() is the largest live() since.
  void restart_peak() { peak_.store(live_.load()); }

  void add(std::int64_t bytes);
  void remove(std::int64_t bytes) { live_.fetch_sub(bytes); }

  /// The account that is open in this thread; null if there is none.
  static std::shared_ptr<TensorMemory> current();

  /// Opens `account` (null: none) in this thread, and in the worker threads that it starts, for the
  /// life of the object.
  class Opened {
   public:
    explicit Opened(std::shared_ptr<TensorMemory> account);
    ~Opened();
    Opened(const Opened&) = delete;
    Opened& operator=(const Opened&) = delete;

   private:
    std::shared_ptr<TensorMemory> before_;  // shared with the tensors booked on it
  };

 private:
  std::atomic<std::int64_t> live_{0}, peak_{0};
};

}  // namespace foresail::runtime
