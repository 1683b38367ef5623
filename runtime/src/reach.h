/// \file
/// Whether a server can be reached, found out within a time limit. A plain connect() to a host that
/// drops packets blocks for minutes.
#pragma once

#include <chrono>
#include <string>

namespace foresail::runtime {

struct Address {
  std::string host;
  int port = 0;
};

/// Tries until something accepts a connection. Throws Error{Device} after `timeout`, or at once if
/// the name does not resolve; `what` ("store at n0:29500") begins the message.
void wait_until_reachable(const Address& address, std::chrono::milliseconds timeout,
                          const std::string& what);

/// Throws Error{Device} if this host cannot listen on the port now.
void refuse_taken_port(int port, const std::string& what);

}  // namespace foresail::runtime
