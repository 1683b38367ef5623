#include "worker_rendezvous.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <optional>
#include <system_error>
#include <thread>
#include <vector>

#include "foresail/base/document.h"
#include "foresail/base/error.h"
#include "watched_store.h"
#include "worker_hang.h"
#include "worker_store.h"

namespace foresail::cli {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

/// How long a called rank has to answer, and then to read what came of the call.
constexpr milliseconds kRollCall{3000};
/// The same if a step hangs: nobody is in a hurry, and hosts may be so busy that steps stand still.
constexpr milliseconds kRollCallOfSteps{10'000};
constexpr std::string_view kSteps = "steps";
constexpr milliseconds kReading{3000};
/// Between two looks at the store while the roll is called.
constexpr milliseconds kLook{20};
/// Begins the message of a rank that ends for another's sake, and what is said of the dead.
constexpr std::string_view kBecause = "ended because of rank";
constexpr std::string_view kWordless = "ended without a word";
constexpr std::string_view kStoreGone = "the store has gone";
/// For a further connection to a store that was there before.
constexpr milliseconds kReconnect{2000};

int status_of(ErrorCode code) {
  return code == ErrorCode::Device || code == ErrorCode::Io ? 1 : 2;
}

std::string numbered(const char* what, int number) {
  return fmt::format("{}/{}", what, number);
}

std::string of_rank(const char* what, int round, int rank) {
  return fmt::format("{}/{}/{}", what, round, rank);
}

/// "rank 2 has"
std::string have(const std::vector<int>& ranks) {
  return ranks_text(ranks) + (ranks.size() == 1 ? " has" : " have");
}

std::string store_gone(const std::string& problem) {
  return fmt::format("{}: {}", kStoreGone, problem);
}

constexpr const char* kConnect = "connect";

/// Of libtorch's store: its listening thread throws, where nobody can catch, when the server's
/// process dies and the connection is reset.
bool is_lost_connection(const std::exception& error) {
  const auto* problem = dynamic_cast<const std::system_error*>(&error);
  return problem && (problem->code() == std::errc::connection_reset ||
                     problem->code() == std::errc::broken_pipe);
}

}  // namespace

Failure describe(const std::exception_ptr& failure) {
  try {
    std::rethrow_exception(failure);
  } catch (const Error& error) {
    return {error.what(), status_of(error.code()), error.code() == ErrorCode::Device};
  } catch (const Diverged& error) {
    return {error.what(), 1, false};
  } catch (const std::exception& error) {
    return {std::string("internal error: ") + error.what(), 1, false};
  }
}

bool blames_others(const std::string& message) {
  const auto has = [&](std::string_view what) { return message.find(what) != std::string::npos; };
  return has(kBecause) || has(kWordless) || has(kStoreGone);
}

struct Rendezvous::Impl {
  explicit Impl(const Options& from)
      : options(from),
        self(from.environment.rank),
        ranks(from.environment.world_size),
        address(parse_store(from.store, from.environment)) {}

  std::unique_ptr<runtime::Store> connect(milliseconds timeout) const {
    return connect_store(address, {timeout, runtime::StoreRole::Client});
  }

  void join() {
    store.ask(kConnect, [this] {
      store.open(connect_store(address, {options.timeout, address.role}));
    });
    if (store.add(numbered("joins", self), 1) > 1) {
      throw Error(ErrorCode::InvalidInput,
                  fmt::format("store at {}: rank {} is in the job already: another process has "
                              "this rank, or another job uses this store",
                              address.text(), self));
    }
    store.set(numbered("joined", self), "");
  }

  /// Once per process; the first who comes here speaks.
  [[noreturn]] void end(const std::string& text, int status) {
    static std::mutex once;
    once.lock();
    {
      const std::scoped_lock lock(files_mutex);
      for (const auto& file : to_remove) {
        std::error_code ignored;
        std::filesystem::remove(file, ignored);
      }
    }
    const std::string who = ranks > 1 ? fmt::format("rank {}: ", self) : "";
    fmt::print(stderr, "foresail-worker: {}{}\n", who, text);
    std::fflush(nullptr);
    std::_Exit(status);
  }

  // ---- the rank that calls

  /// Ranks that do not answer call `n` in time; without those that left after their work.
  std::vector<int> missing_ranks(runtime::Store& line, int n, milliseconds patience) const {
    std::vector<int> missing;
    for (int rank = 0; rank < ranks; ++rank) missing.push_back(rank);
    const auto end_of_call = Clock::now() + patience;
    for (;;) {
      std::erase_if(missing, [&](int rank) {
        return line.has(of_rank("here", n, rank)) || line.has(numbered("left", rank));
      });
      if (missing.empty() || Clock::now() >= end_of_call) return missing;
      std::this_thread::sleep_for(kLook);
    }
  }

  std::string absence(runtime::Store& line, const std::vector<int>& missing) const {
    std::vector<int> never;
    std::ranges::copy_if(missing, std::back_inserter(never),
                         [&](int rank) { return !line.has(numbered("joined", rank)); });
    if (never.empty()) return fmt::format("{} {}", have(missing), kWordless);
    return fmt::format("{} not joined at {} within {} s", have(never), address.text(),
                       std::chrono::duration<double>(options.timeout).count());
  }

  /// Ends all ranks. `failure.text` is this rank's, unless others are to blame.
  void judge(runtime::Store& line, int n, const Failure& failure,
             const std::vector<int>& missing) const {
    Document verdict{{"text", failure.text}, {"status", failure.status}, {"missing", missing}};
    if (missing.empty()) verdict["rank"] = self;
    line.set(numbered("verdict", n), verdict.dump());
  }

  /// False if another rank calls in this round. `about`: nothing or kSteps.
  bool calls(runtime::Store& line, int n, std::string_view about = {}) const {
    if (line.add(numbered("calls", n), 1) > 1) return false;
    line.set(numbered("call", n), std::string(about));
    return true;
  }

  void tell(const Failure& failure) {
    const auto line = connect(kReconnect);
    for (;;) {
      const int n = round;
      if (calls(*line, n)) {
        std::vector<int> missing;
        if (failure.may_be_peers) missing = missing_ranks(*line, n, kRollCall);
        Failure cause = failure;
        if (!missing.empty()) cause.text = absence(*line, missing) + " (" + failure.text + ")";
        judge(*line, n, cause, missing);
        std::this_thread::sleep_for(2 * kReading);  // the standing thread ends the process
        return;
      }
      const auto end_of_round = Clock::now() + kRollCall + kReading;
      while (round == n && Clock::now() < end_of_round) std::this_thread::sleep_for(kLook);
      if (round == n) return;
    }
  }

  /// This rank's own question has been open for too long.
  void ask_who_is_there() {
    const auto line = connect(kReconnect);
    const int n = round;
    if (!calls(*line, n)) return;
    const std::vector<int> missing = missing_ranks(*line, n, kRollCall);
    if (missing.empty()) {
      line->set(numbered("verdict", n), "{}");
    } else {
      judge(*line, n, {absence(*line, missing), 1, true}, missing);
    }
  }

  /// This rank has stood still in a step for longer than `limit`.
  void ask_who_moves(milliseconds limit) {
    const auto line = connect(kReconnect);
    const int n = round;
    if (!calls(*line, n, kSteps)) return;
    RollOfSteps roll{limit, missing_ranks(*line, n, kRollCallOfSteps), {}};
    for (int rank = 0; rank < ranks; ++rank) {
      const std::string key = of_rank("here", n, rank);
      roll.activities.push_back(line->has(key) ? unpack(line->get(key)) : std::nullopt);
    }
    const std::string cause = find_hang(roll);
    const Document none = Document::object();
    const Document found{{"text", cause}, {"status", 1}, {"missing", roll.missing}};
    line->set(numbered("verdict", n), (cause.empty() ? none : found).dump());
  }

  // ---- the ranks that are called

  /// Empty if this rank runs no steps.
  std::optional<StepView> look() const {
    const std::scoped_lock lock(steps_mutex);
    if (!look_at_steps) return std::nullopt;
    return look_at_steps();
  }

  /// What came of call `n`; empty if all go on.
  Document verdict(runtime::Store& line, int n, milliseconds patience) {
    const auto view = look();
    line.set(of_rank("here", n, self), pack(view ? std::optional(view->activity) : std::nullopt));
    const auto end_of_wait = Clock::now() + patience + kReading;
    while (!line.has(numbered("verdict", n))) {
      if (Clock::now() >= end_of_wait) end("ended: a rank failed and did not say why", 1);
      std::this_thread::sleep_for(kLook);
    }
    return parse_json(line.get(numbered("verdict", n)), "verdict");
  }

  [[noreturn]] void obey(runtime::Store& line, int n, const Document& found) {
    line.set(of_rank("heard", n, self), "");
    if (self == 0) {  // whose process may hold the store, and who tidies it up
      const auto end_of_wait = Clock::now() + kReading;
      const std::vector<int> missing = found.at("missing");
      for (int rank = 1; rank < ranks; ++rank) {
        const auto is_expected = [&] {
          return !line.has(of_rank("heard", n, rank)) && !line.has(numbered("left", rank));
        };
        if (std::ranges::find(missing, rank) != missing.end()) continue;
        while (Clock::now() < end_of_wait && is_expected()) std::this_thread::sleep_for(kLook);
      }
      if (address.kind == StoreAddress::Kind::Redis) {
        connect_store(address, {kReconnect, runtime::StoreRole::Server}).reset();
      }
    }
    std::string text = found.at("text");
    const int from = found.value("rank", self);
    if (from != self) text = fmt::format("{} {}: {}", kBecause, from, text);
    end(text, found.at("status"));
  }

  void stand_by() {
    try {
      const auto line = connect(options.timeout);
      for (;;) {
        const int n = round;
        const bool is_about_steps = line->get(numbered("call", n)) == kSteps;
        const Document found = verdict(*line, n, is_about_steps ? kRollCallOfSteps : kRollCall);
        if (!found.empty()) obey(*line, n, found);
        ++round;
      }
    } catch (const std::exception& error) {
      if (is_over) return;
      end(store_gone(error.what()), 1);
    }
  }

  /// For what no thread caught.
  [[noreturn]] void end_uncaught() {
    try {
      if (const auto problem = std::current_exception()) std::rethrow_exception(problem);
    } catch (const std::exception& error) {
      if (is_lost_connection(error)) {
        end(store_gone(fmt::format("store at {}: {}", address.text(), error.what())), 1);
      }
      end(std::string("internal error: ") + error.what(), 1);
    } catch (...) {
    }
    end("internal error", 1);
  }

  void watch_the_clock() {
    const milliseconds pause = std::min(options.timeout / 10, milliseconds(200));
    auto next_look = Clock::now();
    while (!is_over) {
      std::this_thread::sleep_for(pause);
      if (Clock::now() >= next_look && looks_like_a_hang()) {
        next_look = Clock::now() + kReading;
      }
      const auto question = store.open_question();
      if (!question || Clock::now() - question->since < options.timeout) continue;
      if (question->text != kConnect) {
        const auto problem = ask_within(kRollCall + kReading, store_is_silent(question->text),
                                        [this] { ask_who_is_there(); });
        if (problem && !is_over) end(store_gone(describe(problem).text), 1);
        store.wait_on();
      } else if (Clock::now() - question->since > options.timeout + kReading) {
        // The attempt has the same limit and says more, unless a resolver hangs.
        end(fmt::format("store at {}: cannot be reached", address.text()), 1);
      }
    }
  }

  /// Whether this rank has stood still for too long; then it has asked the others.
  bool looks_like_a_hang() {
    const auto view = look();
    if (!view || view->activity.quiet < view->limit) return false;
    const std::string silence =
        fmt::format("{} (rank {} is in {})",
                    address.is_of_rank_zero && self != 0
                        ? fmt::format("rank 0, which serves the store at {}, makes no progress and "
                                      "does not answer",
                                      address.text())
                        : store_is_silent("call"),
                    self, view->activity.text);
    const auto problem =
        ask_within(kRollCallOfSteps + kReading, silence, [&] { ask_who_moves(view->limit); });
    if (problem && !is_over) end(silence + ": " + describe(problem).text, 1);
    return true;
  }

  std::string store_is_silent(const std::string& question) const {
    return fmt::format("store at {}: does not answer ({})", address.text(), question);
  }

  /// What `ask` threw. Ends the process with `silence` if it does not come back in time.
  template <class Ask>
  std::exception_ptr ask_within(milliseconds limit, const std::string& silence, const Ask& ask) {
    std::atomic<bool> is_answered = false;
    std::exception_ptr problem;
    std::thread asking([&] {
      try {
        ask();
      } catch (...) {
        problem = std::current_exception();
      }
      is_answered = true;
    });
    const auto end_of_wait = Clock::now() + limit;
    while (!is_answered && Clock::now() < end_of_wait) std::this_thread::sleep_for(kLook);
    if (!is_answered) end(silence, 1);
    asking.join();
    return problem;
  }

  Options options;
  int self = 0;
  int ranks = 1;
  StoreAddress address;
  WatchedStore store;
  std::mutex files_mutex;  // the standing thread may end the process at any time
  std::vector<std::filesystem::path> to_remove;
  mutable std::mutex steps_mutex;
  std::function<StepView()> look_at_steps;  // empty while this rank runs no steps
  std::atomic<int> round = 0;               // calls so far, all of which ended well
  std::atomic<bool> is_over = false;
};

Rendezvous::Rendezvous(const Options& options) : impl_(std::make_shared<Impl>(options)) {
  const auto impl = impl_;
  static auto& of_process = *new std::shared_ptr<Impl>();  // one a process, until its very end
  of_process = impl;
  std::set_terminate([] { of_process->end_uncaught(); });
  if (impl->ranks == 1) {
    impl->store.open(std::make_unique<runtime::MemoryStore>(options.timeout));
    return;
  }
  std::thread([impl] { impl->watch_the_clock(); }).detach();
  impl->join();
  std::thread([impl] { impl->stand_by(); }).detach();
}

Rendezvous::~Rendezvous() {
  impl_->is_over = true;
  impl_->store.close();
}

const RankEnvironment& Rendezvous::environment() const {
  return impl_->options.environment;
}

const std::string& Rendezvous::store_host() const {
  return impl_->address.host;
}

runtime::Store& Rendezvous::store() {
  return impl_->store;
}

StoreUse Rendezvous::take_use() {
  return impl_->store.take_use();
}

void Rendezvous::watch_steps(std::function<StepView()> look) {
  const std::scoped_lock lock(impl_->steps_mutex);
  impl_->look_at_steps = std::move(look);
}

void Rendezvous::end_of_steps() {
  watch_steps({});
}

void Rendezvous::remove_on_failure(const std::filesystem::path& file) {
  const std::scoped_lock lock(impl_->files_mutex);
  impl_->to_remove.push_back(file);
}

void Rendezvous::fail(const std::exception_ptr& failure) {
  Failure found = describe(failure);
  if (impl_->ranks > 1) {
    try {
      impl_->tell(found);
    } catch (const std::exception& error) {
      // Nobody can be asked any more who is to blame: both things are said.
      if (found.may_be_peers) found.text = store_gone(error.what()) + " (" + found.text + ")";
    }
  }
  impl_->end(found.text, found.status);
}

void Rendezvous::leave() {
  Impl& impl = *impl_;
  if (impl.ranks == 1) return;
  if (impl.self != 0) impl.is_over = true;
  impl.store.set(numbered("left", impl.self), "");
  if (impl.self != 0) return;
  for (int rank = 1; rank < impl.ranks; ++rank) impl.store.get(numbered("left", rank));
  impl.is_over = true;
}

}  // namespace foresail::cli
