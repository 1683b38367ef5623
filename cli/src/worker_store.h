/// \file
/// Where the ranks of a job meet: what `--store` says, or what the launcher's environment implies.
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "foresail/runtime/store.h"
#include "worker_environment.h"

namespace foresail::cli {

struct StoreAddress {
  enum class Kind { Tcp, Redis };
  Kind kind = Kind::Tcp;
  std::string host;
  int port = 0;
  std::string job;  ///< keeps the keys of jobs apart that meet in one store
  runtime::StoreRole role = runtime::StoreRole::Client;

  bool is_of_rank_zero = false;  ///< whose process holds it

  std::string text() const;  ///< "127.0.0.1:29500", "redis://host:6379"
};

/// "" or "tcp" is the store of the environment's master, "tcp://HOST:PORT" one that rank 0 serves
/// there, "redis://HOST[:PORT][/JOB]" a Redis server. Throws Error{InvalidInput}: also if the
/// server is Redis and nobody names the job.
StoreAddress parse_store(const std::string& text, const RankEnvironment& environment);

/// How long to try before it is Error{Device}; `role` instead of the address's.
struct StoreConnection {
  std::chrono::milliseconds timeout;
  runtime::StoreRole role = runtime::StoreRole::Client;
};
std::unique_ptr<runtime::Store> connect_store(const StoreAddress& address,
                                              const StoreConnection& connection);

}  // namespace foresail::cli
