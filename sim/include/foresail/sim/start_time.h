/// \file
/// How long a job needs until its groups can communicate: the store where ranks meet, global
/// barriers between groups, exchange of ids or addresses, and connecting.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "foresail/base/names.h"
#include "foresail/base/units.h"
#include "foresail/program/program.h"

namespace foresail::sim {

/// Groups of one kind, over which the ranks are spread evenly.
struct GroupKind {
  std::string name;
  int groups = 1;
  int size = 1;
  friend bool operator==(const GroupKind&, const GroupKind&) = default;
};

/// How a rank learns that a barrier is complete.
enum class BarrierWait {
  Asks,   ///< again after a pause (torch's _store_based_barrier)
  IsTold  ///< its question stays with a server that does not block, which answers when it can
};

/// A server of one thread: it looks which connections have a question, answers these one after the
/// other, and looks again. All times are the server's.
struct StoreCost {
  std::string name;
  Duration question{};  ///< to read and answer one
  Duration look{};      ///< per connection each time that it looks: poll() goes through them all
  Duration join{};      ///< for a new connection
  int get = 1;          ///< questions of one `get` that waits
  BarrierWait barrier_wait = BarrierWait::Asks;
};
/// libtorch 1.13's TCPStore, which uses poll(), and a Redis server, which uses epoll; both as
/// measured (docs/validation/init.md).
StoreCost tcp_store_cost();
StoreCost redis_store_cost();

/// Global: all ranks meet at the store after the creation of each group (torch's new_group, called
/// for every group on every rank). Ordered: members meet their groups in one global order, and all
/// ranks meet once at the end.
enum class Barriers { Global, Ordered };

/// How members of a group find and reach each other.
enum class GroupTransport {
  Nccl,  ///< one sets an id, the others get it; then a ring of sockets
  Gloo   ///< every member sets its address, gets those of all others, and connects to each
};

struct StartOptions {
  int ranks = 1;
  std::vector<GroupKind> kinds;
  StoreCost store;
  Barriers barriers = Barriers::Ordered;
  GroupTransport transport = GroupTransport::Nccl;
  Duration round_trip{};  ///< of a question, beside the server's time
  Duration poll{};        ///< a rank in a barrier waits so long before it asks again
  /// Gloo: of one rank's time per group, and per peer, from the address to the connection.
  Duration setup{}, connect{};
  /// That share a core, and so take turns where they would work at once.
  double ranks_per_core = 1;
};
/// Round trip, poll and connect of a cluster, and of torch 1.x.
StartOptions cluster_start_options();

struct StartTime {
  Duration join{};       ///< all ranks connect to the store
  Duration barriers{};   ///< global ones
  Duration addresses{};  ///< ids or addresses through the store
  Duration connect{};    ///< among the members
  std::int64_t global_barriers = 0;
  std::int64_t questions = 0;  ///< to the store
  Duration total() const { return join + barriers + addresses + connect; }
};
StartTime start_time(const StartOptions& options);

/// All ranks add one to a counter and wait until it has reached their number, `count` times: the
/// time from the first question to the last answer. Simulated question by question; of more
/// than eight barriers the rest take as long as the mean of the last four of these.
struct BarrierTime {
  Duration time{};
  std::int64_t questions = 0;
};
BarrierTime barrier_time(const StartOptions& options, std::int64_t count);

/// NCCL's bootstrap of one group of `size` ranks with one root.
Duration nccl_bootstrap(int size);

/// The groups that a Program declares, in its order.
std::vector<GroupKind> group_kinds(const program::Program& program);

/// The groups that Megatron-LM of 2023 made with new_group for tp x pp x dp ranks without experts
/// and context parallelism: dp and its twin on Gloo, model parallel, tp, pp, embedding, position
/// embedding (parallel_state.py).
struct MegatronDegrees {
  int tp = 1, pp = 1, dp = 1;
};
std::vector<GroupKind> megatron_group_kinds(const MegatronDegrees& degrees);

}  // namespace foresail::sim

namespace foresail {
template <>
inline constexpr auto kNames<sim::Barriers> = std::to_array<Named<sim::Barriers>>(
    {{sim::Barriers::Global, "global"}, {sim::Barriers::Ordered, "ordered"}});
template <>
inline constexpr auto kNames<sim::GroupTransport> = std::to_array<Named<sim::GroupTransport>>(
    {{sim::GroupTransport::Nccl, "nccl"}, {sim::GroupTransport::Gloo, "gloo"}});
}  // namespace foresail
