#include "foresail/sim/start_time.h"

#include <algorithm>
#include <functional>
#include <queue>
#include <utility>

#include "foresail/base/error.h"

namespace foresail::sim {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::nanoseconds;

/// NCCL's bootstrap (facts: runtime section 10.5): above 256 ranks rank i waits i / 7000 s, the
/// root answers each with two short connections, then rings of sockets all-gather in size / 2 hops,
/// once in the bootstrap and 2 to 3 times in the initialisation. A hop takes 50 to 100 us.
constexpr int kStaggerFrom = 256;
constexpr double kStaggerRate = 7000;
constexpr Duration kAccept = microseconds(50);
constexpr int kConnectionsPerRank = 2;
constexpr int kAllGathersHalves = 7;  // three and a half
constexpr Duration kHop = microseconds(75);

/// A barrier's duration settles within a few.
constexpr std::int64_t kSimulated = 8;
constexpr std::int64_t kAveraged = 4;

Duration times(Duration each, std::int64_t count) {
  return Duration(each.count() * count);
}

/// Ranks in barriers at one server.
class BarrierQueue {
 public:
  BarrierQueue(const StartOptions& options, std::int64_t count)
      : options_(options),
        look_(times(options.store.look, options.ranks)),
        there_(static_cast<std::size_t>(count), 0),
        ends_(static_cast<std::size_t>(count)) {
    for (int rank = 0; rank < options.ranks; ++rank) ask(options.round_trip / 2, {rank, 0, true});
  }

  /// When the last rank left each barrier.
  const std::vector<Duration>& run() {
    while (!questions_.empty()) {
      const Duration start = std::max(now_, std::get<Duration>(questions_.top()));
      std::vector<Question> ready;
      while (!questions_.empty() && std::get<Duration>(questions_.top()) <= start) {
        ready.push_back(std::get<Question>(questions_.top()));
        questions_.pop();
      }
      // A look finds connections in their order, not in that of arrival.
      std::ranges::sort(ready);
      now_ = start + look_;
      for (const Question& question : ready) answer(question);
    }
    return ends_;
  }
  std::int64_t asked() const { return asked_; }

 private:
  struct Question {
    int rank;
    std::size_t barrier;
    bool adds;  ///< itself to those who are there; else it looks how many are
    auto operator<=>(const Question&) const = default;
  };

  void ask(Duration arrival, const Question& question) { questions_.emplace(arrival, question); }

  void answer(const Question& question) {
    const auto& [rank, barrier, adds] = question;
    ++asked_;
    if (adds) {
      now_ += options_.store.question;
      ++there_[barrier];
      ask(now_ + options_.round_trip, {rank, barrier, false});
      if (is_complete(barrier)) tell(barrier);
    } else if (is_complete(barrier)) {
      now_ += options_.store.question;
      leave(rank, barrier);
    } else if (options_.store.barrier_wait == BarrierWait::Asks) {
      now_ += options_.store.question;
      ask(now_ + options_.round_trip + options_.poll, question);
    } else {  // half of the work now, half when it can be answered
      now_ += options_.store.question / 2;
      waiting_.push_back(rank);
    }
  }

  bool is_complete(std::size_t barrier) const { return there_[barrier] == options_.ranks; }

  /// Those that wait. All ranks are in one barrier, or on their way out of it.
  void tell(std::size_t barrier) {
    for (const int rank : std::exchange(waiting_, {})) {
      now_ += options_.store.question / 2;
      leave(rank, barrier);
    }
  }

  void leave(int rank, std::size_t barrier) {
    ends_[barrier] = std::max(ends_[barrier], now_ + options_.round_trip / 2);
    if (barrier + 1 < ends_.size()) ask(now_ + options_.round_trip, {rank, barrier + 1, true});
  }

  using Arrival = std::pair<Duration, Question>;

  const StartOptions& options_;
  Duration look_;
  std::vector<int> there_;
  std::vector<Duration> ends_;
  std::vector<int> waiting_;
  std::priority_queue<Arrival, std::vector<Arrival>, std::greater<>> questions_;
  Duration now_{};
  std::int64_t asked_ = 0;
};

/// What one kind's groups exchange, all at once.
std::int64_t exchange_questions(const StartOptions& options, const GroupKind& kind) {
  const std::int64_t size = kind.size;
  const std::int64_t gets = options.transport == GroupTransport::Nccl ? size - 1  // of the id
                                                                      : size * (size - 1) * 2;
  const std::int64_t sets = options.transport == GroupTransport::Nccl ? 1 : size;
  return kind.groups * (sets + gets * options.store.get);
}

/// Groups of a kind that one rank is in, one after the other.
std::int64_t rounds_of(const StartOptions& options, const GroupKind& kind) {
  const std::int64_t memberships = std::int64_t{kind.groups} * kind.size;
  return (memberships + options.ranks - 1) / options.ranks;
}

Duration connect_time(const StartOptions& options, int size) {
  if (options.transport == GroupTransport::Nccl) return nccl_bootstrap(size);
  const Duration alone = options.setup + times(options.connect, size - 1);
  return duration_from_seconds(to_seconds(alone) * options.ranks_per_core);
}

}  // namespace

// The server's CPU time as bench/store_cost.py measures it: a question with 2,048 of them open at
// once; a connection looked at, from the time with one open; a connection made
// (docs/validation/init.md). A wait at the TCPStore is two questions, wait and get.
StoreCost tcp_store_cost() {
  return {.name = "tcp",
          .question = nanoseconds(13'000),
          .look = nanoseconds(390),
          .join = nanoseconds(34'200),
          .get = 2,
          .barrier_wait = BarrierWait::Asks};
}

StoreCost redis_store_cost() {
  return {.name = "redis",
          .question = nanoseconds(11'000),
          .look = nanoseconds(1),
          .join = nanoseconds(14'600),
          .get = 1,
          .barrier_wait = BarrierWait::IsTold};
}

StartOptions cluster_start_options() {
  StartOptions options;
  options.round_trip = microseconds(50);  // of TCP between hosts of one cluster
  options.poll = milliseconds(10);        // torch's _store_based_barrier sleeps so long
  options.connect = microseconds(100);
  return options;
}

Duration nccl_bootstrap(int size) {
  if (size < 2) return {};
  const Duration stagger =
      size > kStaggerFrom ? duration_from_seconds(size / kStaggerRate) : Duration{};
  const Duration root = times(kAccept, std::int64_t{kConnectionsPerRank} * size);
  const Duration rings = times(kHop, std::int64_t{kAllGathersHalves} * (size / 2) / 2);
  return stagger + root + rings;
}

BarrierTime barrier_time(const StartOptions& options, std::int64_t count) {
  if (count == 0) return {};
  const std::int64_t simulated = std::min(count, kSimulated);
  BarrierQueue queue(options, simulated);
  const std::vector<Duration>& ends = queue.run();
  BarrierTime result{ends.back(), queue.asked()};
  if (count > simulated) {
    const auto before = static_cast<std::size_t>(kSimulated - kAveraged - 1);
    const Duration each = (ends.back() - ends[before]) / kAveraged;
    result.time += times(each, count - simulated);
    result.questions = queue.asked() * count / simulated;
  }
  return result;
}

StartTime start_time(const StartOptions& options) {
  FORESAIL_EXPECT(options.ranks > 0);
  StartTime result;
  result.join = times(options.store.join, options.ranks) + options.round_trip;
  for (const GroupKind& kind : options.kinds) {
    result.global_barriers += kind.groups;
    if (kind.size < 2) continue;
    const std::int64_t questions = exchange_questions(options, kind);
    result.questions += questions;
    const std::int64_t rounds = rounds_of(options, kind);
    result.addresses +=
        times(options.store.question, questions) + times(options.round_trip, rounds);
    result.connect += times(connect_time(options, kind.size), rounds);
  }
  if (options.barriers == Barriers::Ordered) result.global_barriers = 1;
  const BarrierTime barriers = barrier_time(options, result.global_barriers);
  result.barriers = barriers.time;
  result.questions += barriers.questions;
  return result;
}

std::vector<GroupKind> group_kinds(const program::Program& program) {
  std::vector<GroupKind> kinds;
  const int stages = static_cast<int>(program.stages.size());
  const int per_stage = program.grid.world_size() / stages;
  for (std::uint32_t i = 0; i < program.communicators.size(); ++i) {
    const program::Communicator& communicator = program.communicators[i];
    program::Coordinates at{};
    if (!communicator.stages.empty()) {
      at[static_cast<std::size_t>(program::Axis::Pp)] = communicator.stages.front();
    }
    const auto members = program.members(program::CommunicatorId{i}, program.grid.rank(at));
    const int in_it =
        communicator.stages.empty() ? stages : static_cast<int>(communicator.stages.size());
    const int size = static_cast<int>(members.size());
    kinds.push_back({communicator.name, in_it * per_stage / size, size});
  }
  return kinds;
}

std::vector<GroupKind> megatron_group_kinds(const MegatronDegrees& degrees) {
  const auto [tp, pp, dp] = degrees;
  return {{"dp", tp * pp, dp},
          {"dp on gloo", tp * pp, dp},
          {"model parallel", dp, tp * pp},
          {"tp", pp * dp, tp},
          {"pp", tp * dp, pp},
          {"embedding", tp * dp, pp > 1 ? 2 : 1},
          {"position embedding", tp * dp, 1}};
}

}  // namespace foresail::sim
