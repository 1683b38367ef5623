#include "foresail/runtime/store.h"

#include "foresail/base/error.h"

namespace foresail::runtime {

void MemoryStore::set(const std::string& key, const std::string& value) {
  const std::scoped_lock lock(mutex_);
  values_[key] = value;
  changed_.notify_all();
}

std::string MemoryStore::get(const std::string& key) {
  std::unique_lock lock(mutex_);
  if (!changed_.wait_for(lock, timeout_, [&] { return values_.contains(key); })) {
    throw Error(ErrorCode::Device, "store: nobody set \"" + key + "\" in time");
  }
  return values_[key];
}

std::int64_t MemoryStore::add(const std::string& key, std::int64_t delta) {
  const std::scoped_lock lock(mutex_);
  return counters_[key] += delta;
}

bool MemoryStore::has(const std::string& key) {
  const std::scoped_lock lock(mutex_);
  return values_.contains(key);
}

}  // namespace foresail::runtime
