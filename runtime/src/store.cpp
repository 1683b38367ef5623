#include "foresail/runtime/store.h"

#include <torch/csrc/distributed/c10d/TCPStore.hpp>

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

namespace {

class TcpStore : public Store {
 public:
  explicit TcpStore(const TcpStoreOptions& options)
      : where_(options.host + ":" + std::to_string(options.port)) {
    c10d::TCPStoreOptions torch_options;
    torch_options.port = static_cast<std::uint16_t>(options.port);
    torch_options.isServer = options.role == StoreRole::Server;
    torch_options.waitWorkers = false;
    torch_options.timeout = options.timeout;
    guarded("connect",
            [&] { store_ = c10::make_intrusive<c10d::TCPStore>(options.host, torch_options); });
  }

  void set(const std::string& key, const std::string& value) override {
    guarded("set " + key,
            [&] { store_->set(key, std::vector<std::uint8_t>(value.begin(), value.end())); });
  }

  std::string get(const std::string& key) override {
    std::vector<std::uint8_t> value;
    guarded("get " + key, [&] { value = store_->get(key); });
    return {value.begin(), value.end()};
  }

  std::int64_t add(const std::string& key, std::int64_t delta) override {
    std::int64_t sum = 0;
    guarded("add " + key, [&] { sum = store_->add(key, delta); });
    return sum;
  }

 private:
  template <class Call>
  void guarded(const std::string& what, const Call& call) {
    try {
      call();
    } catch (const std::exception& error) {
      const std::string text = error.what();
      throw Error(ErrorCode::Device,
                  "store at " + where_ + ": " + what + ": " + text.substr(0, text.find('\n')));
    }
  }

  std::string where_;
  c10::intrusive_ptr<c10d::TCPStore> store_;
};

}  // namespace

std::unique_ptr<Store> make_tcp_store(const TcpStoreOptions& options) {
  return std::make_unique<TcpStore>(options);
}

}  // namespace foresail::runtime
