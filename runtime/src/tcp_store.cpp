#include <c10/util/Logging.h>

#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "foresail/base/error.h"
#include "foresail/runtime/store.h"
#include "reach.h"

namespace foresail::runtime {
namespace {

/// Of glog's levels: what c10d would warn of is told by our own errors.
constexpr int kLogErrorsOnly = 2;

/// The part of libtorch's text that says what happened.
std::string reason(const std::exception& error) {
  const std::string text = error.what();
  return text.substr(0, text.find('\n'));
}

class TcpStore : public Store {
 public:
  explicit TcpStore(const TcpStoreOptions& options)
      : where_(options.host + ":" + std::to_string(options.port)), prefix_(options.prefix) {
    FLAGS_caffe2_log_level = kLogErrorsOnly;
    const bool serves = options.role == StoreRole::Server;
    if (serves) {
      refuse_taken_port(options.port, "store at " + where_);
    } else {
      wait_until_reachable({options.host, options.port}, options.timeout, "store at " + where_);
    }
    c10d::TCPStoreOptions torch_options;
    torch_options.port = static_cast<std::uint16_t>(options.port);
    torch_options.isServer = serves;
    torch_options.waitWorkers = false;
    torch_options.timeout = options.timeout;
    guarded("connect",
            [&] { store_ = c10::make_intrusive<c10d::TCPStore>(options.host, torch_options); });
    store_->setTimeout(options.get_timeout);
  }

  void set(const std::string& key, const std::string& value) override {
    guarded("set " + key, [&] {
      store_->set(prefix_ + key, std::vector<std::uint8_t>(value.begin(), value.end()));
    });
  }

  std::string get(const std::string& key) override {
    std::vector<std::uint8_t> value;
    guarded("get " + key, [&] { value = store_->get(prefix_ + key); });
    return {value.begin(), value.end()};
  }

  std::int64_t add(const std::string& key, std::int64_t delta) override {
    std::int64_t sum = 0;
    guarded("add " + key, [&] { sum = store_->add(prefix_ + "sum/" + key, delta); });
    return sum;
  }

  bool has(const std::string& key) override {
    bool is_there = false;
    guarded("check " + key, [&] { is_there = store_->check({prefix_ + key}); });
    return is_there;
  }

 private:
  template <class Call>
  void guarded(const std::string& what, const Call& call) {
    try {
      call();
    } catch (const std::exception& error) {
      throw Error(ErrorCode::Device, "store at " + where_ + ": " + what + ": " + reason(error));
    }
  }

  std::string where_;
  std::string prefix_;
  c10::intrusive_ptr<c10d::TCPStore> store_;
};

}  // namespace

std::unique_ptr<Store> make_tcp_store(const TcpStoreOptions& options) {
  return std::make_unique<TcpStore>(options);
}

}  // namespace foresail::runtime
