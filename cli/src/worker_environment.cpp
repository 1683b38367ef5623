#include "worker_environment.h"

#include <arpa/inet.h>
#include <malloc.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <charconv>
#include <cstdlib>
#include <cstring>
#include <optional>

#include "foresail/base/error.h"

namespace foresail::cli {
namespace {

constexpr int kSlurmPortBase = 29500;
constexpr int kSlurmPorts = 1000;

std::optional<std::string> variable(const char* name) {
  const char* value = std::getenv(name);
  if (value == nullptr || *value == '\0') return std::nullopt;
  return value;
}

int integer(const char* name, const std::string& text) {
  int value = 0;
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (code != std::errc() || end != text.data() + text.size()) {
    throw Error(ErrorCode::InvalidInput,
                std::string(name) + ": expected an integer, got \"" + text + '"');
  }
  return value;
}

int demanded_integer(const char* name) {
  const auto text = variable(name);
  if (!text) throw Error(ErrorCode::InvalidInput, std::string(name) + " is not set");
  return integer(name, *text);
}

RankEnvironment checked(const RankEnvironment& environment) {
  if (environment.world_size < 1 || environment.rank < 0 ||
      environment.rank >= environment.world_size) {
    throw Error(ErrorCode::InvalidInput, "rank " + std::to_string(environment.rank) + " of " +
                                             std::to_string(environment.world_size));
  }
  return environment;
}

/// torchrun says "none" where nobody named the job. After a failure it starts the job again.
std::string torchrun_job() {
  if (const auto launched = variable("FORESAIL_JOB")) return *launched;
  const std::string name = variable("TORCHELASTIC_RUN_ID").value_or("none");
  if (name == "none") return {};
  return name + '.' + variable("TORCHELASTIC_RESTART_COUNT").value_or("0");
}

RankEnvironment from_torchrun(const std::string& rank) {
  RankEnvironment environment;
  environment.rank = integer("RANK", rank);
  environment.world_size = demanded_integer("WORLD_SIZE");
  environment.local_rank = integer("LOCAL_RANK", variable("LOCAL_RANK").value_or("0"));
  environment.master_host = variable("MASTER_ADDR").value_or("127.0.0.1");
  environment.master_port = demanded_integer("MASTER_PORT");
  environment.is_store_served = variable("TORCHELASTIC_USE_AGENT_STORE").value_or("") == "True";
  environment.job = torchrun_job();
  return checked(environment);
}

RankEnvironment from_slurm(const std::string& rank) {
  RankEnvironment environment;
  environment.rank = integer("SLURM_PROCID", rank);
  environment.world_size = demanded_integer("SLURM_NTASKS");
  environment.local_rank = integer("SLURM_LOCALID", variable("SLURM_LOCALID").value_or("0"));
  const std::string nodes = variable("SLURM_STEP_NODELIST").value_or("127.0.0.1");
  environment.master_host = variable("MASTER_ADDR").value_or(first_host(nodes));
  const auto port = variable("MASTER_PORT");
  environment.master_port = port ? integer("MASTER_PORT", *port)
                                 : kSlurmPortBase + demanded_integer("SLURM_JOB_ID") % kSlurmPorts;
  environment.job = "slurm-" + variable("SLURM_JOB_ID").value_or("0") + '.' +
                    variable("SLURM_STEP_ID").value_or("0");
  return checked(environment);
}

}  // namespace

RankEnvironment read_environment() {
  if (const auto rank = variable("RANK")) return from_torchrun(*rank);
  if (const auto rank = variable("SLURM_PROCID")) return from_slurm(*rank);
  RankEnvironment alone;
  alone.master_port = free_port();
  return alone;
}

runtime::GlooEndpoint::Options endpoint_options(const std::string& store_host) {
  runtime::GlooEndpoint::Options options;
  if (const auto interface = variable("FORESAIL_INTERFACE")) {
    options.interface = *interface;
  } else if (const auto gloo_interface = variable("GLOO_SOCKET_IFNAME")) {
    options.interface = *gloo_interface;
  } else if (store_host != "127.0.0.1" && store_host != "localhost") {
    char name[256] = {};
    gethostname(name, sizeof(name) - 1);
    options.host = name;
  }
  return options;
}

std::string first_host(const std::string& node_list) {
  const std::size_t bracket = node_list.find('[');
  const std::size_t comma = node_list.find(',');
  if (bracket == std::string::npos || comma < bracket) return node_list.substr(0, comma);
  const std::size_t end = node_list.find_first_of(",-]", bracket);
  return node_list.substr(0, bracket) + node_list.substr(bracket + 1, end - bracket - 1);
}

void keep_freed_memory() {
  constexpr int kMmapThreshold = 32 << 20;  // the C library's maximum
  constexpr int kTrimThreshold = 1 << 30;
  mallopt(M_MMAP_THRESHOLD, kMmapThreshold);
  mallopt(M_TRIM_THRESHOLD, kTrimThreshold);
  mallopt(M_ARENA_MAX, 1);  // heaps of other arenas are small and given back
}

int free_port() {
  const int socket_fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (socket_fd < 0) throw Error(ErrorCode::Device, "socket: no free port");
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  sockaddr generic{};
  std::memcpy(&generic, &address, sizeof(address));
  const bool is_bound =
      ::bind(socket_fd, &generic, size) == 0 && ::getsockname(socket_fd, &generic, &size) == 0;
  std::memcpy(&address, &generic, sizeof(address));
  ::close(socket_fd);
  if (!is_bound) throw Error(ErrorCode::Device, "socket: no free port");
  return ntohs(address.sin_port);
}

}  // namespace foresail::cli
