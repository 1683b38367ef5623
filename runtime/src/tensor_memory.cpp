#include "foresail/runtime/tensor_memory.h"

#include <c10/core/Allocator.h>
#include <torch/version.h>

#include <cstdlib>
#include <new>

#include "foresail/base/error.h"

namespace foresail::runtime {
namespace {

/// libtorch's own alignment on a CPU (c10/core/alignment.h).
constexpr std::size_t kAlignment = 64;

/// Stands in front of a tensor's bytes. Shares the account, which may outlive the rank.
struct Header {
  std::shared_ptr<TensorMemory> account;
  std::int64_t bytes = 0;
};
static_assert(sizeof(Header) <= kAlignment);

thread_local std::shared_ptr<TensorMemory> open_account;

Header* header_of(void* data) {
  return reinterpret_cast<Header*>(static_cast<char*>(data) - kAlignment);
}

void free_counted(void* data) {
  if (data == nullptr) return;
  Header* header = header_of(data);
  if (header->account != nullptr) header->account->remove(header->bytes);
  header->~Header();
  std::free(header);
}

class CountingAllocator : public c10::Allocator {
 public:
#if TORCH_VERSION_MAJOR >= 2
  c10::DataPtr allocate(std::size_t bytes) override {
    return make(bytes);
  }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }
#else
  c10::DataPtr allocate(std::size_t bytes) const override {
    return make(bytes);
  }
#endif
  c10::DeleterFnPtr raw_deleter() const override {
    return &free_counted;
  }

 private:
  static c10::DataPtr make(std::size_t bytes) {
    const c10::Device cpu(c10::DeviceType::CPU);
    if (bytes == 0) return {nullptr, nullptr, &free_counted, cpu};
    const std::size_t whole = (bytes + 2 * kAlignment - 1) / kAlignment * kAlignment;
    void* block = std::aligned_alloc(kAlignment, whole);
    if (block == nullptr) throw std::bad_alloc();
    auto* header = new (block) Header{open_account, static_cast<std::int64_t>(bytes)};
    if (header->account != nullptr) header->account->add(header->bytes);
    void* data = static_cast<char*>(block) + kAlignment;
    return {data, data, &free_counted, cpu};
  }
};

}  // namespace

void TensorMemory::count() {
  // libtorch keeps the pointer for the life of the process.
  static CountingAllocator allocator;
  c10::SetAllocator(c10::DeviceType::CPU, &allocator);
}

bool TensorMemory::is_counting() {
  return dynamic_cast<CountingAllocator*>(c10::GetAllocator(c10::DeviceType::CPU)) != nullptr;
}

void TensorMemory::add(std::int64_t bytes) {
  const std::int64_t now = live_.fetch_add(bytes) + bytes;
  std::int64_t seen = peak_.load();
  while (seen < now && !peak_.compare_exchange_weak(seen, now)) {
  }
}

std::shared_ptr<TensorMemory> TensorMemory::current() {
  return open_account;
}

TensorMemory::Opened::Opened(std::shared_ptr<TensorMemory> account)
    : before_(std::exchange(open_account, std::move(account))) {}

TensorMemory::Opened::~Opened() {
  open_account = std::move(before_);
}

}  // namespace foresail::runtime
