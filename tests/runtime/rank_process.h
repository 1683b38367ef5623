/// \file
/// Ranks as processes that a test starts by hand, as a batch system would, and may kill.
#pragma once

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "command_outcome.h"

namespace foresail::testing {

inline std::string contents(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

/// A command in a process of its own, whose output goes to a file. Killed if nobody waited for it.
class Process {
 public:
  /// `command` is a shell's; `log` gets standard output and standard error.
  Process(const std::string& command, std::filesystem::path log) : log_(std::move(log)) {
    pid_ = fork();
    if (pid_ != 0) return;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    const int file = open(log_.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0666);
    dup2(file, STDOUT_FILENO);
    dup2(file, STDERR_FILENO);
    execl("/bin/sh", "sh", "-c", ("exec " + command).c_str(), nullptr);
    _exit(127);
  }
  Process(Process&& other) noexcept
      : log_(std::move(other.log_)), pid_(std::exchange(other.pid_, -1)) {}
  Process& operator=(Process&&) = delete;
  ~Process() {
    if (pid_ <= 0) return;
    kill(SIGKILL);
    wait();
  }

  void kill(int signal) const { ::kill(pid_, signal); }
  std::string output() const { return contents(log_); }
  bool has_ended() const {
    siginfo_t info{};
    return waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOHANG | WNOWAIT) != 0 ||
           info.si_pid != 0;
  }
  /// Until it has written `text`. False if it ends before.
  bool wait_for(const std::string& text) const {
    const auto has_written = [&] { return output().find(text) != std::string::npos; };
    while (!has_written()) {
      if (has_ended()) return has_written();
      usleep(5000);
    }
    return true;
  }
  /// Its exit status (128 + a signal that ended it), and all output.
  Outcome wait() {
    int status = 0;
    waitpid(std::exchange(pid_, -1), &status, 0);
    return {WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status), output()};
  }

 private:
  std::filesystem::path log_;
  pid_t pid_ = -1;
};

/// A Redis server of the test's own, which holds nothing and writes nothing.
class RedisServer {
 public:
  static bool is_installed() { return run_command("command -v redis-server").status == 0; }
  RedisServer(int port, const std::filesystem::path& folder)
      : port_(port),
        process_("redis-server --port " + std::to_string(port) +
                     " --bind 127.0.0.1 --save '' --appendonly no --dir " + folder.string(),
                 folder / "redis.log") {
    process_.wait_for("Ready to accept connections");
  }
  int port() const { return port_; }
  std::string url() const { return "redis://127.0.0.1:" + std::to_string(port_); }
  void kill() const { process_.kill(SIGKILL); }
  /// What `redis-cli` answers.
  std::string ask(const std::string& command) const {
    return run_command("redis-cli -p " + std::to_string(port_) + " " + command).text;
  }

 private:
  int port_;
  Process process_;
};

}  // namespace foresail::testing
