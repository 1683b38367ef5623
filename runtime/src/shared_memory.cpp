#include "shared_memory.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <climits>
#include <cstring>

#include "foresail/base/error.h"

namespace foresail::runtime {
namespace {

constexpr std::string_view kProcess = "/proc/";

[[noreturn]] void fail(const std::string& what) {
  throw Error(ErrorCode::Device, "shared memory: " + what + ": " + std::strerror(errno));
}

long futex(const std::atomic<std::uint32_t>& word, int operation, std::uint32_t value,
           const timespec* patience) {
  static_assert(std::atomic<std::uint32_t>::is_always_lock_free);
  return ::syscall(SYS_futex, &word, operation, value, patience, nullptr, 0);
}

}  // namespace

SharedMemory::SharedMemory(std::size_t bytes) : owner_(::getpid()) {
  descriptor_ = ::memfd_create("foresail_batches", MFD_CLOEXEC);
  if (descriptor_ < 0) fail("memfd_create");
  if (::ftruncate(descriptor_, static_cast<off_t>(bytes)) != 0) {
    ::close(descriptor_);
    fail(std::to_string(bytes) + " bytes");
  }
  map(bytes);
}

SharedMemory::SharedMemory(const std::string& handle, std::size_t bytes) {
  if (!handle.starts_with(kProcess)) {
    throw Error(ErrorCode::Device, "shared memory: " + handle + ": no handle of another process");
  }
  std::from_chars(handle.data() + kProcess.size(), handle.data() + handle.size(), owner_);
  descriptor_ = ::open(handle.c_str(), O_RDWR | O_CLOEXEC);
  if (descriptor_ < 0) fail(handle);
  struct stat status {};
  const bool is_as_long =
      ::fstat(descriptor_, &status) == 0 && status.st_size == static_cast<off_t>(bytes);
  if (!is_as_long) {
    ::close(descriptor_);
    throw Error(ErrorCode::Device, "shared memory: " + handle + ": not " + std::to_string(bytes) +
                                       " bytes as this rank expects");
  }
  map(bytes);
}

void SharedMemory::map(std::size_t bytes) {
  void* start = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor_, 0);
  if (start == MAP_FAILED) {
    ::close(descriptor_);
    fail(std::to_string(bytes) + " bytes");
  }
  data_ = static_cast<std::byte*>(start);
  bytes_ = bytes;
}

SharedMemory::~SharedMemory() {
  ::munmap(data_, bytes_);
  ::close(descriptor_);
}

std::string SharedMemory::handle() const {
  return std::string(kProcess) + std::to_string(owner_) + "/fd/" + std::to_string(descriptor_);
}

bool SharedMemory::has_owner() const {
  return ::kill(owner_, 0) == 0 || errno != ESRCH;
}

void SharedCounter::set(std::uint32_t value) {
  value_.store(value, std::memory_order_release);
  futex(value_, FUTEX_WAKE, INT_MAX, nullptr);
}

void SharedCounter::wait_while(std::uint32_t seen, std::chrono::milliseconds patience) const {
  if (value() != seen) return;
  const timespec limit{.tv_sec = static_cast<time_t>(patience.count() / 1000),
                       .tv_nsec = static_cast<long>(patience.count() % 1000 * 1'000'000)};
  futex(value_, FUTEX_WAIT, seen, &limit);
}

}  // namespace foresail::runtime
