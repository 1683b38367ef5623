// How long a start takes with 2 to 64 processes on this host, against sim/start_time.h: global
// barriers after torch's manner, and a group of all made by Gloo, each at a TCPStore and at a
// Redis server. The model's constants are measured first, with 1, 2 and 8 processes; every other
// row is a prediction.
//
//     foresail-bench-start [REDIS_PORT]
#include <fmt/format.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "foresail/runtime/gloo.h"
#include "foresail/runtime/store.h"
#include "foresail/sim/start_time.h"

namespace foresail {
namespace {

using Clock = std::chrono::steady_clock;
using runtime::Store;
using runtime::StoreRole;

constexpr int kCalibrated = 8;  // processes whose measurement sets the constants
constexpr int kBarriers = 20;
constexpr int kQuestions = 400;
constexpr std::chrono::milliseconds kPoll{10};
constexpr std::chrono::milliseconds kLimit{120'000};

double now() {
  return std::chrono::duration<double>(Clock::now().time_since_epoch()).count();
}

/// Where processes of one measurement meet.
struct Place {
  int redis_port = 0;  ///< 0: a TCPStore, which rank 0 serves
  int port = 0;
  int ranks = 1;
};

std::unique_ptr<Store> connect(const Place& place, int rank) {
  const StoreRole role = rank == 0 ? StoreRole::Server : StoreRole::Client;
  if (place.redis_port > 0) {
    return runtime::make_redis_store({.host = "127.0.0.1",
                                      .port = place.redis_port,
                                      .job = fmt::format("bench-{}-{}", getppid(), place.port),
                                      .role = role,
                                      .timeout = kLimit});
  }
  return runtime::make_tcp_store(
      {.host = "127.0.0.1", .port = place.port, .role = role, .timeout = kLimit});
}

/// torch's _store_based_barrier.
void barrier(Store& store, const std::string& name, int ranks) {
  store.add(name, 1);
  while (store.add(name, 0) < ranks) std::this_thread::sleep_for(kPoll);
}

struct Times {
  double join = 0, barriers = 0, group = 0, questions = 0;
};

/// What one process measures.
Times measure_rank(const Place& place, int rank) {
  Times times;
  const double start = now();
  const auto store = connect(place, rank);
  barrier(*store, "joined", place.ranks);
  times.join = now() - start;
  const double asking = now();
  for (int i = 0; i < kQuestions; ++i) store->add("questions", 1);
  times.questions = (now() - asking) / kQuestions;
  barrier(*store, "asked", place.ranks);
  const double meeting = now();
  for (int i = 0; i < kBarriers; ++i) barrier(*store, fmt::format("b{}", i), place.ranks);
  times.barriers = now() - meeting;
  barrier(*store, "met", place.ranks);
  const runtime::GlooEndpoint endpoint({});
  const double connecting = now();
  const auto group = endpoint.connect({"world", rank, place.ranks}, *store);
  times.group = now() - connecting;
  group->barrier();
  barrier(*store, "left", place.ranks);
  if (rank == 0) std::this_thread::sleep_for(std::chrono::milliseconds(200));
  return times;
}

/// The slowest of `place.ranks` processes, phase by phase.
Times measure(const Place& place) {
  int ends[2];
  if (pipe(ends) != 0) std::exit(1);
  for (int rank = 0; rank < place.ranks; ++rank) {
    if (fork() != 0) continue;
    const Times times = measure_rank(place, rank);
    const bool is_written = write(ends[1], &times, sizeof(times)) == sizeof(times);
    std::_Exit(is_written ? 0 : 1);
  }
  Times slowest;
  for (int rank = 0; rank < place.ranks; ++rank) {
    Times times;
    if (read(ends[0], &times, sizeof(times)) != sizeof(times)) std::exit(1);
    slowest.join = std::max(slowest.join, times.join);
    slowest.barriers = std::max(slowest.barriers, times.barriers);
    slowest.group = std::max(slowest.group, times.group);
    slowest.questions = std::max(slowest.questions, times.questions);
  }
  while (wait(nullptr) > 0) {
  }
  close(ends[0]);
  close(ends[1]);
  return slowest;
}

/// The median of three, phase by phase.
Times repeated(Place place) {
  std::vector<Times> all;
  for (int i = 0; i < 3; ++i) {
    ++place.port;
    all.push_back(measure(place));
  }
  const auto median = [&](double Times::*phase) {
    std::vector<double> values;
    for (const Times& each : all) values.push_back(each.*phase);
    std::ranges::sort(values);
    return values[1];
  };
  return {median(&Times::join), median(&Times::barriers), median(&Times::group),
          median(&Times::questions)};
}

/// Constants from 1 and from 8 processes, which all ask at once: then the server and the clients
/// that share its cores spend `question` on each. Groups: a part per rank and a part per peer, from
/// 2 and from 8.
struct Calibration {
  Times one, two, eight;
  bool is_redis = false;
};
sim::StartOptions calibrated(const Calibration& from) {
  const auto& [one, two, eight, is_redis] = from;
  sim::StartOptions options;
  options.transport = sim::GroupTransport::Gloo;
  options.store.question = duration_from_seconds(eight.questions / kCalibrated);
  options.round_trip =
      std::max(Duration{}, duration_from_seconds(one.questions) - options.store.question);
  options.store.join = duration_from_seconds(eight.join / kCalibrated);
  options.poll = kPoll;
  options.store.get = is_redis ? 1 : 2;  // the TCPStore waits, then gets
  const double cores = std::max(1u, std::thread::hardware_concurrency());
  const auto beside_questions = [&](const Times& times, int ranks) {
    sim::StartOptions asking = options;
    asking.kinds = {{"world", 1, ranks}};
    const double asked = to_seconds(sim::start_time(asking).addresses);
    return std::max(0.0, times.group - asked) / std::max(1.0, ranks / cores);
  };
  const double of_two = beside_questions(two, 2);
  const double of_eight = beside_questions(eight, kCalibrated);
  const double per_peer = std::max(0.0, (of_eight - of_two) / (kCalibrated - 2));
  options.connect = duration_from_seconds(per_peer);
  options.setup = duration_from_seconds(std::max(0.0, of_two - per_peer));
  return options;
}

void compare(const std::string& name, int redis_port) {
  Place place{redis_port, 21000 + getpid() % 20000, 1};
  const Times one = repeated(place);
  place.ranks = kCalibrated;
  place.port += 10;
  const Times eight = repeated(place);
  place.ranks = 2;
  place.port += 10;
  const Times two = repeated(place);
  sim::StartOptions options = calibrated({one, two, eight, redis_port > 0});
  options.store.name = name;
  fmt::print(
      "{}: question {:.1f} us, round trip {:.1f} us, join {:.0f} us, setup {:.0f} us, "
      "connect {:.0f} us\n",
      name, to_seconds(options.store.question) * 1e6, to_seconds(options.round_trip) * 1e6,
      to_seconds(options.store.join) * 1e6, to_seconds(options.setup) * 1e6,
      to_seconds(options.connect) * 1e6);
  const double cores = std::max(1u, std::thread::hardware_concurrency());
  for (const int ranks : {2, 4, 8, 16, 32, 64}) {
    place.ranks = ranks;
    place.port += 10;
    const Times found = ranks == kCalibrated ? eight : ranks == 2 ? two : repeated(place);
    options.ranks = ranks;
    options.kinds = {{"world", 1, ranks}};
    options.ranks_per_core = std::max(1.0, ranks / cores);
    const sim::StartTime model = sim::start_time(options);
    const double barriers = to_seconds(sim::barrier_time(options, kBarriers).time);
    fmt::print(
        "{:<6} {:>3} join {:>7.1f} {:>7.1f}  barrier {:>7.2f} {:>7.2f}  group {:>8.1f} "
        "{:>8.1f}\n",
        name, ranks, found.join * 1e3, to_seconds(model.join) * 1e3,
        found.barriers / kBarriers * 1e3, barriers / kBarriers * 1e3, found.group * 1e3,
        to_seconds(model.addresses + model.connect) * 1e3);
    std::fflush(stdout);
  }
}

}  // namespace
}  // namespace foresail

int main(int count, char** values) {
  fmt::print("ms, measured and model; a barrier is the mean of {}\n", foresail::kBarriers);
  foresail::compare("tcp", 0);
  if (count > 1) foresail::compare("redis", std::atoi(values[1]));
  return 0;
}
