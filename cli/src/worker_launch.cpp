#include "worker_launch.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <optional>

#include "foresail/base/error.h"
#include "worker_environment.h"
#include "worker_rendezvous.h"

namespace foresail::cli {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

/// After the first failure: time for the cause to show, and for the others to end by themselves.
constexpr milliseconds kSettle{500};
/// Between SIGTERM and SIGKILL.
constexpr milliseconds kGrace{3000};

struct Child {
  int rank = 0;
  pid_t pid = -1;
  int errors = -1;            ///< its standard error
  std::string text;           ///< what it wrote there
  std::optional<int> status;  ///< as waitpid gives it
  bool has_failed() const { return status && *status != 0; }
};

/// The signals that this process handles itself while it launches.
class SignalSet {
 public:
  SignalSet() {
    sigemptyset(&set_);
    for (const int signal : {SIGCHLD, SIGINT, SIGTERM}) sigaddset(&set_, signal);
    sigprocmask(SIG_BLOCK, &set_, &before_);
    descriptor_ = signalfd(-1, &set_, SFD_CLOEXEC | SFD_NONBLOCK);
    if (descriptor_ < 0) throw Error(ErrorCode::Device, "signalfd: cannot watch signals");
  }
  ~SignalSet() {
    close(descriptor_);
    sigprocmask(SIG_SETMASK, &before_, nullptr);
  }
  SignalSet(const SignalSet&) = delete;
  SignalSet& operator=(const SignalSet&) = delete;

  int descriptor() const { return descriptor_; }
  const sigset_t& before() const { return before_; }
  /// The last of SIGINT and SIGTERM that arrived, if any.
  std::optional<int> take() const {
    std::optional<int> ending;
    signalfd_siginfo info{};
    while (read(descriptor_, &info, sizeof(info)) == sizeof(info)) {
      if (info.ssi_signo != SIGCHLD) ending = static_cast<int>(info.ssi_signo);
    }
    return ending;
  }

 private:
  sigset_t set_{}, before_{};
  int descriptor_ = -1;
};

[[noreturn]] void become_rank(const LaunchOptions& options, int rank, int port) {
  setenv("RANK", std::to_string(rank).c_str(), 1);
  setenv("LOCAL_RANK", std::to_string(rank).c_str(), 1);
  setenv("WORLD_SIZE", std::to_string(options.ranks).c_str(), 1);
  setenv("MASTER_ADDR", "127.0.0.1", 1);
  setenv("MASTER_PORT", std::to_string(port).c_str(), 1);
  setenv("FORESAIL_JOB", options.job.c_str(), 1);
  for (const char* threads : {"OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"}) setenv(threads, "1", 1);
  std::vector<char*> arguments;
  std::string self = "foresail-worker";
  arguments.push_back(self.data());
  std::vector<std::string> copies = options.arguments;
  for (std::string& each : copies) arguments.push_back(each.data());
  arguments.push_back(nullptr);
  execv("/proc/self/exe", arguments.data());
  _exit(127);
}

Child start(const LaunchOptions& options, int rank, int port, const SignalSet& signals) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) throw Error(ErrorCode::Device, "pipe: cannot start ranks");
  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid < 0) throw Error(ErrorCode::Device, "fork: cannot start rank " + std::to_string(rank));
  if (pid == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(1);
    sigprocmask(SIG_SETMASK, &signals.before(), nullptr);
    dup2(ends[1], STDERR_FILENO);
    become_rank(options, rank, port);
  }
  close(ends[1]);
  fcntl(ends[0], F_SETFL, O_NONBLOCK);
  Child child;
  child.rank = rank;
  child.pid = pid;
  child.errors = ends[0];
  return child;
}

class Launch {
 public:
  explicit Launch(const LaunchOptions& options) : half_written_(options.half_written) {
    const int port = free_port();
    try {
      for (int rank = 0; rank < options.ranks; ++rank) {
        children_.push_back(start(options, rank, port, signals_));
      }
    } catch (...) {
      end_all();
      throw;
    }
  }
  ~Launch() {
    end_all();
    for (const Child& child : children_) close(child.errors);
  }
  Launch(const Launch&) = delete;
  Launch& operator=(const Launch&) = delete;

  int run() {
    while (!is_over()) {
      step(milliseconds(200));
      if (ended_by_) break;
      if (has_failure()) {
        settle();
        break;
      }
    }
    end_all();
    const int status = answer();
    if (status != 0) tidy_up();
    return status;
  }

 private:
  bool is_over() const {
    return std::ranges::all_of(children_, [](const Child& c) { return c.status.has_value(); });
  }
  bool has_failure() const { return std::ranges::any_of(children_, &Child::has_failed); }

  /// Waits for something to happen, and takes note of it.
  void step(milliseconds patience) {
    std::vector<pollfd> watched{{signals_.descriptor(), POLLIN, 0}};
    for (const Child& child : children_) {
      if (!child.status) watched.push_back({child.errors, POLLIN, 0});
    }
    poll(watched.data(), watched.size(), static_cast<int>(patience.count()));
    if (const auto ending = signals_.take()) ended_by_ = ending;
    for (Child& child : children_) {
      drain(child);
      int status = 0;
      if (!child.status && waitpid(child.pid, &status, WNOHANG) == child.pid) {
        child.status = status;
        drain(child);
      }
    }
  }

  static void drain(Child& child) {
    char buffer[4096];
    for (;;) {
      const ssize_t count = read(child.errors, buffer, sizeof(buffer));
      if (count <= 0) return;
      child.text.append(buffer, static_cast<std::size_t>(count));
    }
  }

  /// Ranks that lose a peer fail too; the cause may come a moment later than its effects.
  void settle() {
    const auto end = Clock::now() + kSettle;
    while (!is_over() && Clock::now() < end) step(milliseconds(50));
  }

  void end_all() {
    signal_all(SIGTERM);
    const auto end = Clock::now() + kGrace;
    while (!is_over() && Clock::now() < end) step(milliseconds(20));
    signal_all(SIGKILL);
    while (!is_over()) step(milliseconds(20));
  }

  void signal_all(int signal) {
    for (Child& child : children_) {
      if (child.status) continue;
      kill(child.pid, signal);
      was_ended_.push_back(child.rank);
    }
  }

  /// How surely a rank failed of itself: by a signal that we did not send, by its input, by a
  /// failure of its own, or because of another rank.
  int severity(const Child& child) const {
    if (!child.has_failed()) return 0;
    if (std::ranges::find(was_ended_, child.rank) != was_ended_.end()) return 0;
    if (WIFSIGNALED(*child.status)) return 4;
    if (WEXITSTATUS(*child.status) == 2 && !blames_others(child.text)) return 3;
    return blames_others(child.text) ? 1 : 2;
  }

  /// Ranks that were killed could not.
  void tidy_up() const {
    std::error_code ignored;
    for (const auto& file : half_written_) std::filesystem::remove(file, ignored);
  }

  int answer() const {
    if (ended_by_) return 128 + *ended_by_;
    const Child* cause = nullptr;
    for (const Child& child : children_) {
      if (severity(child) > (cause == nullptr ? 0 : severity(*cause))) cause = &child;
    }
    for (const Child& child : children_) {
      if (cause == nullptr || &child == cause) std::fputs(child.text.c_str(), stderr);
    }
    if (cause == nullptr) return 0;
    if (!WIFSIGNALED(*cause->status)) return WEXITSTATUS(*cause->status);
    fmt::print(stderr, "foresail-worker: rank {} was ended by signal {} ({})\n", cause->rank,
               WTERMSIG(*cause->status), strsignal(WTERMSIG(*cause->status)));
    return 1;
  }

  std::vector<std::filesystem::path> half_written_;
  SignalSet signals_;
  std::vector<Child> children_;
  std::vector<int> was_ended_;  // ranks that we signalled
  std::optional<int> ended_by_;
};

}  // namespace

int launch(LaunchOptions options) {
  if (options.job.empty()) {
    options.job = fmt::format("launch-{}-{}", getpid(), Clock::now().time_since_epoch().count());
  }
  return Launch(options).run();
}

}  // namespace foresail::cli
