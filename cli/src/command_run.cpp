#include <fmt/format.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <thread>

#include "command.h"
#include "foresail/base/error.h"
#include "foresail/program/trace.h"
#include "foresail/report/result.h"
#include "option_checks.h"
#include "output_checks.h"

namespace foresail::cli {
namespace {

namespace fs = std::filesystem;

struct Options {
  Common common;
  std::string plan, output, data, weights, save_weights, metrics, store, timeout, step_timeout,
      device;
  int launch = 0, steps = 0, processes = 0;
};

void add_number(std::vector<std::string>& arguments, const char* option, int value) {
  if (value > 0) arguments.insert(arguments.end(), {option, fmt::format("{}", value)});
}

void add_text(std::vector<std::string>& arguments, const char* option, const std::string& value) {
  if (!value.empty()) arguments.insert(arguments.end(), {option, value});
}

// The digests that every rank computed for itself, one line a rank.
std::string digest_table(const Document& run) {
  std::string text = "\n";
  const Document& plans = run.at("rank_plan_digests");
  const Document& programs = run.at("rank_program_digests");
  for (std::size_t r = 0; r < plans.size(); ++r) {
    text += fmt::format("rank {:<3} plan {}  program {}\n", r, plans[r].get<std::string>(),
                        programs[r].get<std::string>());
  }
  return text;
}

// Adds DIR/result.json: what was measured, in the shape of a prediction.
int report_run(const Options& options) {
  const fs::path folder = options.output;
  const std::string path = (folder / "trace.json").string();
  const planner::Plan plan = planner::load_plan(options.plan);
  const program::Program program = scenarios::lower_verified(plan);
  const program::Trace trace =
      program::trace_from_document(parse_json(read_file(path), path), path);
  report::StepResult result = scenarios::measured_result(plan, program, trace);
  const std::string run_path = (folder / "run.json").string();
  const Document run = parse_json(read_file(run_path), run_path);
  Bytes measured;
  for (const Document& peak : run.at("peak_memory_bytes")) {
    measured = std::max(measured, Bytes(peak.get<std::int64_t>()));
  }
  result.memory_measured = measured;
  OutputFiles files;
  files.add(folder / "result.json", report::to_document(result).dump(2) + "\n");
  const std::string& trace_file = options.common.trace_file;
  if (!trace_file.empty()) files.add(trace_file, trace_text(trace_file, program, trace));
  answer(options.common, report::to_document(result), report::to_text(result) + digest_table(run),
         std::move(files));
  return kOk;
}

/// Files are written when the job is over: what cannot be is said before it starts.
void check_outputs(const Options& options) {
  demand_folder("-o", options.output);
  if (!options.save_weights.empty()) demand_folder("--save-weights", options.save_weights);
  const fs::path folder = options.output;
  std::vector<std::string> files = {options.metrics, options.common.trace_file,
                                    options.common.report_file};
  for (const char* own : {"trace.json", "metrics.jsonl", "run.json", "result.json"}) {
    files.push_back((folder / own).string());
  }
  keep_input(options.plan, files);
  if (!options.data.empty()) keep_input(options.data, files);
  demand_file("--metrics", options.metrics);
  demand_file("--trace", options.common.trace_file);
  demand_file("--report", options.common.report_file);
}

int run(const Options& options) {
  std::vector<std::string> arguments;
  const bool is_rank = options.launch == 0;  // under torchrun or srun: be one rank
  if (!is_rank) {
    check_outputs(options);
    parse_trace_ranks(options.common.trace_ranks, options.launch);
  }
  arguments = {is_rank ? "run" : "launch", options.plan, "-o", options.output};
  add_number(arguments, "--launch", options.launch);
  add_text(arguments, "--data", options.data);
  add_text(arguments, "--weights", options.weights);
  add_text(arguments, "--save-weights", options.save_weights);
  add_text(arguments, "--device", options.device);
  add_text(arguments, "--metrics", options.metrics);
  add_text(arguments, "--store", options.store);
  add_text(arguments, "--timeout", options.timeout);
  add_text(arguments, "--step-timeout", options.step_timeout);
  add_number(arguments, "--steps", options.steps);
  add_text(arguments, "--trace-ranks", options.common.trace_ranks);
  if (options.common.is_quiet) arguments.emplace_back("--quiet");
  const int status = run_worker(arguments);
  if (status != kOk) return status;
  const char* rank = std::getenv("RANK");
  if (is_rank && rank != nullptr && std::string_view(rank) != "0") return kOk;
  return report_run(options);
}

int calibrate(const Options& options) {
  if (!options.plan.empty()) {
    keep_input(options.plan, {options.output, options.common.report_file});
  }
  demand_file("-o", options.output);
  demand_file("--report", options.common.report_file);
  std::vector<std::string> arguments = {"calibrate", "-o", options.output};
  add_text(arguments, "--plan", options.plan);
  add_text(arguments, "--device", options.device);
  add_number(arguments, "--processes", options.processes);
  const int status = run_worker(arguments);
  if (status != kOk) return status;
  const program::Profile profile = program::load_profile(options.output);
  const std::size_t kernels = profile.kernels.size();
  const std::size_t transfers = profile.transfers.size();
  Document document{{"profile", options.output},      {"host", profile.host},
                    {"blas", profile.blas},           {"cores", profile.cores},
                    {"processes", profile.processes}, {"kernels", kernels},
                    {"transfers", transfers}};
  std::string where = fmt::format("{} cores of {}", profile.cores, profile.host);
  if (!profile.device.empty()) {
    document["device"] = profile.device;
    where = profile.device;
    if (profile.processes == 1) where += " (alone: nothing to transfer to)";
    const int cores = static_cast<int>(std::thread::hardware_concurrency());
    if (options.device != "cuda" && profile.processes > cores) {
      where += fmt::format(" with {} cores: transfers hold the ranks' waits for a core", cores);
    }
  }
  answer(options.common, document,
         fmt::format("{}: {} kernels and {} transfers by {} processes on {}\n", options.output,
                     kernels, transfers, profile.processes, where));
  return kOk;
}

}  // namespace

std::string worker_path() {
  std::error_code problem;
  const fs::path self = fs::read_symlink("/proc/self/exe", problem);
  const fs::path beside = self.parent_path() / "foresail-worker";
  if (!problem && fs::exists(beside, problem)) return beside.string();
  const char* path = std::getenv("PATH");
  std::string_view rest = path == nullptr ? "" : path;
  while (!rest.empty()) {
    const std::size_t end = rest.find(':');
    const fs::path candidate = fs::path(rest.substr(0, end)) / "foresail-worker";
    if (fs::exists(candidate, problem)) return candidate.string();
    rest.remove_prefix(end == std::string_view::npos ? rest.size() : end + 1);
  }
  return {};
}

int run_worker(const std::vector<std::string>& arguments) {
  const std::string worker = worker_path();
  if (worker.empty()) {
    throw Error(ErrorCode::NotFound,
                "foresail-worker: not found beside foresail nor in PATH (it is built only where "
                "libtorch and Gloo are installed)");
  }
  std::vector<char*> values;
  std::string name = worker;
  values.push_back(name.data());
  std::vector<std::string> copies = arguments;
  for (std::string& argument : copies) values.push_back(argument.data());
  values.push_back(nullptr);
  const pid_t child = ::fork();
  if (child < 0) throw Error(ErrorCode::Io, fmt::format("fork: {}", std::strerror(errno)));
  if (child == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGTERM);  // no worker outlives a killed command
    // Standard output belongs to this command's answer; the worker's progress goes beside it.
    ::dup2(STDERR_FILENO, STDOUT_FILENO);
    ::execv(worker.c_str(), values.data());
    fmt::print(stderr, "foresail: {}: {}\n", worker, std::strerror(errno));
    std::_Exit(kFailedRun);
  }
  int status = 0;
  while (::waitpid(child, &status, 0) < 0) {
    if (errno != EINTR) throw Error(ErrorCode::Io, fmt::format("wait: {}", std::strerror(errno)));
  }
  if (WIFEXITED(status)) return WEXITSTATUS(status);
  fmt::print(stderr, "foresail: {}: ended by signal {}\n", worker, WTERMSIG(status));
  return kFailedRun;
}

Command add_run(CLI::App& root) {
  auto options = std::make_shared<Options>();  // shared with the runner below
  CLI::App* app = root.add_subcommand("run", "train a Plan for real");
  app->add_option("plan", options->plan, "the Plan")->required();
  app->add_option("-o,--output", options->output, "folder for trace, metrics and result")
      ->required();
  app->add_option("--launch", options->launch,
                  "start this many ranks on this host; without it, be the rank that torchrun's or "
                  "Slurm's environment names")
      ->check(whole_number(1));
  app->add_option("--data", options->data, "text, or PREFIX of a .bin and .idx, to train on");
  app->add_option("--weights", options->weights,
                  "safetensors file, or folder with one, to start from");
  app->add_option("--save-weights", options->save_weights,
                  "folder for model.safetensors and config.json after the last step");
  app->add_option("--device", options->device, "cpu (default), or cuda")
      ->check(CLI::IsMember({"cpu", "cuda"}));
  app->add_option("--steps", options->steps, "instead of the plan's")->check(whole_number(1));
  app->add_option("--metrics", options->metrics, "file that gets a JSON line per step");
  app->add_option("--store", options->store,
                  "where ranks meet: tcp (default), tcp://HOST:PORT or redis://HOST[:PORT][/JOB]");
  app->add_option("--timeout", options->timeout,
                  "after which a silent rank is looked for (default 20 s)");
  app->add_option("--step-timeout", options->step_timeout,
                  "how long a step may stand still on all ranks (default 10 times the slowest step "
                  "so far, at least 1 min; 5 min in the first)");
  options->common.add_outputs_to(*app);
  options->common.add_trace_to(*app);
  return {app, [options] { return run(*options); }};
}

Command add_calibrate(CLI::App& root) {
  auto options = std::make_shared<Options>();  // shared with the runner below
  CLI::App* app = root.add_subcommand("calibrate", "measure this host's kernels and collectives");
  app->add_option("-o,--output", options->output, "the Profile to write")->required();
  app->add_option("--plan", options->plan, "measure what this Plan runs, with as many processes");
  app->add_option("--device", options->device, "cpu (default), or cuda: this host's GPUs")
      ->check(CLI::IsMember({"cpu", "cuda"}));
  app->add_option("--processes", options->processes, "that measure at the same time")
      ->check(whole_number(1));
  options->common.add_outputs_to(*app);
  return {app, [options] { return calibrate(*options); }};
}

}  // namespace foresail::cli
