/// \file
/// Memory that processes of one host share, and a counter in it to wait for.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>

namespace foresail::runtime {

/// Zeroed, and without a name: it ends with the last process that has it.
class SharedMemory {
 public:
  explicit SharedMemory(std::size_t bytes);
  /// Maps what the owner's handle() names. Throws Error{Device} if that cannot be, or if the memory
  /// is not of `bytes`.
  SharedMemory(const std::string& handle, std::size_t bytes);
  ~SharedMemory();
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;

  std::byte* data() const { return data_; }
  /// "/proc/<process>/fd/<number>", good while the owner lives.
  std::string handle() const;
  /// Whether the process that made it still runs.
  bool has_owner() const;

 private:
  void map(std::size_t bytes);

  int descriptor_ = -1;
  pid_t owner_ = 0;
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
};

/// Counts up in shared memory. Waiters sleep in the kernel (futex). A zeroed one is valid.
class SharedCounter {
 public:
  std::uint32_t value() const { return value_.load(std::memory_order_acquire); }
  void set(std::uint32_t value);
  /// Returns when the value is no longer `seen`, or after `patience`, or for no reason.
  void wait_while(std::uint32_t seen, std::chrono::milliseconds patience) const;

 private:
  std::atomic<std::uint32_t> value_{0};
};

}  // namespace foresail::runtime
