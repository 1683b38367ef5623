// foresail-worker: executes Plans and measures hosts. `foresail run` and `foresail calibrate` start
// it; torchrun and srun may start `foresail-worker run` themselves.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <thread>

#include "foresail/base/error.h"
#include "option_checks.h"
#include "worker_calibrate.h"
#include "worker_devices.h"
#include "worker_launch.h"
#include "worker_run.h"
#include "worker_weights.h"

namespace foresail::cli {
namespace {

struct Arguments {
  RunOptions run;
  CalibrateRunOptions calibrate;
  int steps = 0;
  int ranks = 0;
};

void add_run_options(CLI::App& command, Arguments& arguments) {
  command.add_option("plan", arguments.run.plan, "the Plan")->required();
  command.add_option("-o,--output", arguments.run.output, "folder for the results")->required();
  command.add_option("--data", arguments.run.data,
                     "text, or PREFIX of a .bin and .idx, to train on");
  command.add_option("--weights", arguments.run.weights,
                     "safetensors file, or folder with one, to start from");
  command.add_option("--save-weights", arguments.run.save_weights,
                     "folder for model.safetensors and config.json after the last step");
  command.add_option("--device", arguments.run.device, "cpu or cuda");
  command.add_option("--steps", arguments.steps, "instead of training.steps")
      ->check(whole_number(1));
  command.add_option("--trace-ranks", arguments.run.trace_ranks, "all, class, or a list of ranks");
  command.add_option("--metrics", arguments.run.metrics, "file that gets a JSON line per step");
  command.add_option("--store", arguments.run.store,
                     "where ranks meet: tcp, tcp://HOST:PORT or redis://HOST[:PORT][/JOB]");
  command.add_option("--timeout", arguments.run.timeout,
                     "after which a silent rank is looked for (20 s)");
  command.add_option("--step-timeout", arguments.run.step_timeout,
                     "how long a step may stand still (10 of the slowest so far, at least 1 min)");
  command.add_flag("--quiet", arguments.run.is_quiet, "no line per step");
}

void add_calibrate_options(CLI::App& command, Arguments& arguments) {
  command.add_option("-o,--output", arguments.calibrate.output, "the Profile")->required();
  command.add_option("--plan", arguments.calibrate.plan, "whose kernels and transfers to measure");
  command.add_option("--device", arguments.calibrate.device, "cpu or cuda");
}

/// The ranks' command line: that of the launch, without what concerns the launch.
int launch_run(const Arguments& arguments) {
  demand_devices(arguments.run.device, arguments.ranks,
                 fmt::format("--launch {}", arguments.ranks));
  load_executable_plan(arguments.run.plan, arguments.ranks);
  wait_limit(arguments.run);
  step_limit(arguments.run);
  LaunchOptions options;
  options.ranks = arguments.ranks;
  options.arguments = {
      "run",           arguments.run.plan.string(), "-o", arguments.run.output.string(),
      "--trace-ranks", arguments.run.trace_ranks};
  const auto add = [&](const char* name, const std::string& value) {
    options.arguments.insert(options.arguments.end(), {name, value});
  };
  if (!arguments.run.data.empty()) add("--data", arguments.run.data);
  if (!arguments.run.weights.empty()) add("--weights", arguments.run.weights);
  add("--device", arguments.run.device);
  if (!arguments.run.metrics.empty()) add("--metrics", arguments.run.metrics);
  if (!arguments.run.store.empty()) add("--store", arguments.run.store);
  add("--timeout", arguments.run.timeout);
  if (!arguments.run.step_timeout.empty()) add("--step-timeout", arguments.run.step_timeout);
  if (!arguments.run.save_weights.empty()) {
    add("--save-weights", arguments.run.save_weights);
    options.half_written.push_back(unfinished_weights(arguments.run.save_weights));
  }
  if (arguments.steps > 0) add("--steps", std::to_string(arguments.steps));
  if (arguments.run.is_quiet) options.arguments.emplace_back("--quiet");
  return launch(options);
}

/// Each process loads libtorch (some 160 MB); more of them than this only measure each other.
constexpr int kProcessesPerCore = 8;

void demand_cores(int processes) {
  const int cores = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  if (processes <= kProcessesPerCore * cores) return;
  throw Error(ErrorCode::InvalidInput,
              fmt::format("--processes {}: at most {} for each of this host's {} cores", processes,
                          kProcessesPerCore, cores));
}

int launch_calibrate(const Arguments& arguments) {
  const CalibrateRunOptions& calibrate = arguments.calibrate;
  demand_devices(calibrate.device, 1, "a calibration");
  if (arguments.ranks > 0) demand_cores(arguments.ranks);
  const int processes = arguments.ranks > 0 ? arguments.ranks : default_processes(calibrate);
  demand_devices(calibrate.device, processes, fmt::format("{} processes", processes));
  if (!calibrate.plan.empty()) load_executable_plan(calibrate.plan, processes);
  LaunchOptions options;
  options.ranks = processes;
  options.arguments = {"calibrate-rank", "-o", calibrate.output.string(), "--device",
                       calibrate.device};
  if (!calibrate.plan.empty()) {
    options.arguments.insert(options.arguments.end(), {"--plan", calibrate.plan.string()});
  }
  return launch(options);
}

int dispatch(int count, char** values) {
  CLI::App app("Executes Plans and measures hosts.", "foresail-worker");
  app.require_subcommand(1);
  Arguments arguments;
  CLI::App* run = app.add_subcommand("run", "be one rank (torchrun's or Slurm's environment)");
  add_run_options(*run, arguments);
  CLI::App* start = app.add_subcommand("launch", "start all ranks on this host");
  add_run_options(*start, arguments);
  start->add_option("--launch", arguments.ranks, "number of ranks")->required();
  CLI::App* calibrate = app.add_subcommand("calibrate", "measure this host");
  add_calibrate_options(*calibrate, arguments);
  calibrate->add_option("--processes", arguments.ranks, "that measure at the same time")
      ->check(whole_number(1));
  CLI::App* calibrate_one = app.add_subcommand("calibrate-rank", "be one process of calibrate");
  add_calibrate_options(*calibrate_one, arguments);
  CLI::App* devices = app.add_subcommand("devices", "what this build sees of CUDA and NCCL");
  refuse_in_one_line(app);
  refuse_empty_values(app);
  try {
    app.parse(count, values);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  if (arguments.steps > 0) arguments.run.steps = arguments.steps;
  if (devices->parsed()) print_devices();
  if (start->parsed()) return launch_run(arguments);
  if (calibrate->parsed()) return launch_calibrate(arguments);
  if (run->parsed()) run_rank(arguments.run);
  if (calibrate_one->parsed()) calibrate_rank(arguments.calibrate);
  return 0;
}

int guarded(int count, char** values) {
  try {
    return dispatch(count, values);
  } catch (...) {
    return report_failure(std::current_exception());
  }
}

}  // namespace
}  // namespace foresail::cli

int main(int count, char** values) {
  const int status = foresail::cli::guarded(count, values);
  std::fflush(nullptr);
  std::_Exit(status);  // threads may still wait at the store
}
