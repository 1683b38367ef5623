#include "worker_store.h"

#include <algorithm>
#include <charconv>

#include "foresail/base/error.h"

namespace foresail::cli {
namespace {

constexpr int kRedisPort = 6379;
constexpr int kPortMax = 65535;

[[noreturn]] void refuse(const std::string& text, const std::string& why) {
  throw Error(ErrorCode::InvalidInput, "--store: \"" + text + "\": " + why);
}

/// "HOST:PORT", or "HOST" if there is a default port; "[ADDRESS]" is a host of IPv6.
void read_place(const std::string& text, const std::string& place, StoreAddress& address) {
  const bool is_ipv6 = place.starts_with('[');
  const std::size_t host_end = is_ipv6 ? place.find(']') : 0;
  if (host_end == std::string::npos) refuse(text, "\"[\" without \"]\"");
  const std::size_t colon = place.find(':', host_end);
  address.host = is_ipv6 ? place.substr(1, host_end - 1) : place.substr(0, colon);
  if (is_ipv6 && std::min(colon, place.size()) != host_end + 1) {
    refuse(text, "a port follows \"]\" after \":\"");
  }
  if (address.host.empty()) refuse(text, "names no host");
  if (colon == std::string::npos) {
    if (address.port == 0) refuse(text, "names no port");
    return;
  }
  const char* end = place.data() + place.size();
  const auto [last, code] = std::from_chars(place.data() + colon + 1, end, address.port);
  if (code != std::errc() || last != end || address.port < 1 || address.port > kPortMax) {
    refuse(text, "\"" + place.substr(colon + 1) + "\" is no port");
  }
}

}  // namespace

std::string StoreAddress::text() const {
  const bool is_ipv6 = host.find(':') != std::string::npos;
  const std::string place = (is_ipv6 ? '[' + host + ']' : host) + ':' + std::to_string(port);
  return kind == Kind::Redis ? "redis://" + place : place;
}

StoreAddress parse_store(const std::string& text, const RankEnvironment& environment) {
  StoreAddress address;
  address.job = environment.job;
  address.role = environment.rank == 0 ? runtime::StoreRole::Server : runtime::StoreRole::Client;
  if (text.empty() || text == "tcp") {
    address.host = environment.master_host;
    address.port = environment.master_port;
    if (environment.is_store_served) address.role = runtime::StoreRole::Client;
    address.is_of_rank_zero = !environment.is_store_served;
    return address;
  }
  const std::size_t mark = text.find("://");
  const std::string scheme = text.substr(0, mark);
  if (mark == std::string::npos || (scheme != "tcp" && scheme != "redis")) {
    refuse(text, "is not tcp, tcp://HOST:PORT or redis://HOST[:PORT][/JOB]");
  }
  std::string place = text.substr(mark + 3);
  if (scheme == "tcp") {
    read_place(text, place, address);
    address.is_of_rank_zero = true;
    return address;
  }
  address.kind = StoreAddress::Kind::Redis;
  address.port = kRedisPort;
  if (const std::size_t slash = place.find('/'); slash != std::string::npos) {
    address.job = place.substr(slash + 1);
    place.resize(slash);
  }
  read_place(text, place, address);
  if (address.job.empty()) {
    refuse(text, "other jobs may use the server: name this one, as redis://HOST:PORT/JOB");
  }
  return address;
}

std::unique_ptr<runtime::Store> connect_store(const StoreAddress& address,
                                              const StoreConnection& connection) {
  if (address.kind == StoreAddress::Kind::Redis) {
    return runtime::make_redis_store({.host = address.host,
                                      .port = address.port,
                                      .job = address.job,
                                      .role = connection.role,
                                      .timeout = connection.timeout});
  }
  return runtime::make_tcp_store({.host = address.host,
                                  .port = address.port,
                                  .role = connection.role,
                                  .prefix = address.job + '/',
                                  .timeout = connection.timeout});
}

}  // namespace foresail::cli
