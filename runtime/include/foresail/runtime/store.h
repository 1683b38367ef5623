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

/// Keys of `add` and keys of `set` are apart. A store is one connection: one thread at a time.
class Store {
 public:
  virtual ~Store() = default;
  virtual void set(const std::string& key, const std::string& value) = 0;
  /// Waits until the key is there; Error{Device} after the store's timeout.
  virtual std::string get(const std::string& key) = 0;
  /// Adds to a counter (which starts at 0) and returns the new value.
  virtual std::int64_t add(const std::string& key, std::int64_t delta) = 0;
  /// Whether the key is there now.
  virtual bool has(const std::string& key) = 0;
};

/// For ranks that are threads of one process.
class MemoryStore : public Store {
 public:
  explicit MemoryStore(std::chrono::milliseconds timeout) : timeout_(timeout) {}
  void set(const std::string& key, const std::string& value) override;
  std::string get(const std::string& key) override;
  std::int64_t add(const std::string& key, std::int64_t delta) override;
  bool has(const std::string& key) override;

 private:
  std::chrono::milliseconds timeout_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, std::string> values_;
  std::map<std::string, std::int64_t> counters_;
};

enum class StoreRole { Server, Client };

/// libtorch's TCPStore, so that a launcher which already runs one (torchrun) can be joined. The
/// server's process holds the values. Throws Error{Device} when host and port cannot be reached
/// within `timeout`, or the port is taken.
struct TcpStoreOptions {
  std::string host = "127.0.0.1";
  int port = 29500;
  StoreRole role = StoreRole::Client;
  std::string prefix{};  ///< in front of every key: keeps jobs apart that meet in one store
  std::chrono::milliseconds timeout{std::chrono::minutes(5)};          ///< to connect
  std::chrono::milliseconds get_timeout{std::chrono::hours(24 * 30)};  ///< of `get`
};
std::unique_ptr<Store> make_tcp_store(const TcpStoreOptions& options);

/// A Redis server's hash of the name `job`. It vanishes with the store whose role is Server, or an
/// hour after the last value was set. Throws Error{Device} as make_tcp_store does.
struct RedisStoreOptions {
  std::string host = "127.0.0.1";
  int port = 6379;
  std::string job;
  StoreRole role = StoreRole::Client;
  std::chrono::milliseconds timeout{std::chrono::minutes(5)};
  std::chrono::milliseconds get_timeout{std::chrono::hours(24 * 30)};
};
std::unique_ptr<Store> make_redis_store(const RedisStoreOptions& options);

}  // namespace foresail::runtime
