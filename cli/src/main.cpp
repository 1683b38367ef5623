// foresail: plan, simulate, run, compare. Links no torch; what needs it is done by foresail-worker.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <vector>

#include "command.h"
#include "foresail/base/error.h"
#include "option_checks.h"

namespace foresail::cli {
namespace {

int dispatch(int count, char** values) {
  CLI::App app("Predicts a large-model training job on a cluster, and runs the same plan.",
               "foresail");
  app.set_version_flag("--version", scenarios::version());
  app.require_subcommand(1);
  const std::vector<Command> commands = {add_plan(app),      add_simulate(app),   add_run(app),
                                         add_calibrate(app), add_compare(app),    add_validate(app),
                                         add_topology(app),  add_collective(app), add_explain(app),
                                         add_import(app),    add_doctor(app)};
  refuse_in_one_line(app);
  refuse_empty_values(app);
  try {
    app.parse(count, values);
  } catch (const CLI::ParseError& problem) {
    return app.exit(problem) == 0 ? kOk : kBadInput;
  }
  for (const Command& command : commands) {
    if (command.app->parsed()) return command.run();
  }
  return kBadInput;
}

int status_of(const Error& problem) {
  switch (problem.code()) {
    case ErrorCode::InvalidInput:
    case ErrorCode::NotFound:
    case ErrorCode::Unsupported:
      return kBadInput;
    case ErrorCode::Device:
    case ErrorCode::Io:
      return kFailedRun;
  }
  return kFailedRun;
}

int guarded(int count, char** values) {
  try {
    return dispatch(count, values);
  } catch (const Error& problem) {
    fmt::print(stderr, "foresail: {}\n", problem.what());
    return status_of(problem);
  } catch (const std::exception& problem) {
    fmt::print(stderr, "foresail: internal error: {}\n", problem.what());
    return kFailedRun;
  }
}

}  // namespace
}  // namespace foresail::cli

int main(int count, char** values) {
  return foresail::cli::guarded(count, values);
}
