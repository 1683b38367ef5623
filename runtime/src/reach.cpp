#include "reach.h"

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <thread>

#include "foresail/base/error.h"

namespace foresail::runtime {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

/// Between two attempts: a server that starts beside us is there in a moment.
constexpr milliseconds kPause{20};

class Socket {
 public:
  Socket(int family, int flags) : fd_(::socket(family, SOCK_STREAM | SOCK_CLOEXEC | flags, 0)) {}
  ~Socket() {
    if (fd_ >= 0) ::close(fd_);
  }
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;
  int fd() const { return fd_; }

 private:
  int fd_ = -1;
};

using Addresses = std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)>;

Addresses resolve(const Address& address, const std::string& what) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int code =
      ::getaddrinfo(address.host.c_str(), std::to_string(address.port).c_str(), &hints, &found);
  if (code != 0) {
    throw Error(ErrorCode::Device, what + ": " + address.host + ": " + ::gai_strerror(code));
  }
  return {found, &::freeaddrinfo};
}

/// 0, or the errno of one attempt that ends at `end`.
int attempt(const addrinfo& place, Clock::time_point end) {
  const Socket socket(place.ai_family, SOCK_NONBLOCK);
  if (socket.fd() < 0) return errno;
  if (::connect(socket.fd(), place.ai_addr, place.ai_addrlen) == 0) return 0;
  if (errno != EINPROGRESS) return errno;
  const auto left = std::chrono::duration_cast<milliseconds>(end - Clock::now());
  pollfd ready{socket.fd(), POLLOUT, 0};
  if (::poll(&ready, 1, static_cast<int>(std::max(left, milliseconds(1)).count())) != 1) {
    return ETIMEDOUT;
  }
  int problem = 0;
  socklen_t size = sizeof(problem);
  if (::getsockopt(socket.fd(), SOL_SOCKET, SO_ERROR, &problem, &size) != 0) return errno;
  return problem;
}

}  // namespace

void wait_until_reachable(const Address& address, milliseconds timeout, const std::string& what) {
  const Addresses places = resolve(address, what);
  const auto end = Clock::now() + timeout;
  int problem = ETIMEDOUT;
  do {
    for (const addrinfo* place = places.get(); place != nullptr; place = place->ai_next) {
      const int found = attempt(*place, end);
      if (found == 0) return;
      // An address family that this host lacks says nothing about the server.
      if (found != EAFNOSUPPORT && found != EADDRNOTAVAIL) problem = found;
    }
    std::this_thread::sleep_for(kPause);
  } while (Clock::now() < end);
  throw Error(ErrorCode::Device, what + ": cannot be reached within " +
                                     std::to_string(timeout.count()) +
                                     " ms: " + std::strerror(problem));
}

void refuse_taken_port(int port, const std::string& what) {
  const Socket socket(AF_INET, 0);
  const int on = 1;
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_ANY);
  sockaddr generic{};
  std::memcpy(&generic, &address, sizeof(address));
  const bool is_free = ::setsockopt(socket.fd(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) == 0 &&
                       ::bind(socket.fd(), &generic, sizeof(address)) == 0 &&
                       ::listen(socket.fd(), 1) == 0;
  if (is_free) return;
  throw Error(ErrorCode::Device, what + ": rank 0 cannot listen on port " + std::to_string(port) +
                                     ": " + std::strerror(errno));
}

}  // namespace foresail::runtime
