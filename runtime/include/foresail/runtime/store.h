/// \file
/// The rendezvous store: a small shared map by which ranks meet, compare digests and hand results
/// to rank 0.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>

namespace foresail::runtime {

class Store {
 public:
  virtual ~Store() = default;
  virtual void set(const std::string& key, const std::string& value) = 0;
  /// Waits until the key is there; Error{Device} after the store's timeout.
  virtual std::string get(const std::string& key) = 0;
  /// Adds to a counter (which starts at 0) and returns the new value.
  virtual std::int64_t add(const std::string& key, std::int64_t delta) = 0;
};

/// For ranks that are threads of one process.
class MemoryStore : public Store {
 public:
  explicit MemoryStore(std::chrono::milliseconds timeout) : timeout_(timeout) {}
  void set(const std::string& key, const std::string& value) override;
  std::string get(const std::string& key) override;
  std::int64_t add(const std::string& key, std::int64_t delta) override;

 private:
  std::chrono::milliseconds timeout_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, std::string> values_;
  std::map<std::string, std::int64_t> counters_;
};

enum class StoreRole { Server, Client };

/// libtorch's TCPStore, so that a launcher which already runs one (torchrun) can be joined.
/// Throws Error{Device} when host and port cannot be reached within `timeout`.
struct TcpStoreOptions {
  std::string host = "127.0.0.1";
  int port = 29500;
  StoreRole role = StoreRole::Client;
  std::chrono::milliseconds timeout{std::chrono::minutes(5)};
};
std::unique_ptr<Store> make_tcp_store(const TcpStoreOptions& options);

}  // namespace foresail::runtime
