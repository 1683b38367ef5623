/// \file
/// The built command, run as a user runs it.
#pragma once

#include <sys/wait.h>

#include <array>
#include <cstdio>
#include <filesystem>
#include <string>

#include "foresail/base/document.h"

namespace foresail::test {

struct Outcome {
  int status = -1;
  std::string out, error;
};

/// `foresail ARGUMENTS`; standard error goes by way of the file `error`.
inline Outcome run_command(const std::string& arguments, const std::filesystem::path& error) {
  const std::string line =
      std::string(FORESAIL_COMMAND) + " " + arguments + " 2>" + error.string() + " </dev/null";
  Outcome outcome;
  FILE* pipe = ::popen(line.c_str(), "r");
  std::array<char, 4096> buffer{};
  for (std::size_t got = 0; (got = std::fread(buffer.data(), 1, buffer.size(), pipe)) > 0;) {
    outcome.out.append(buffer.data(), got);
  }
  const int status = ::pclose(pipe);
  outcome.status = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  outcome.error = read_file(error);
  return outcome;
}

}  // namespace foresail::test
