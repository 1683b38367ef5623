#include "worker_run.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

#include "foresail/base/error.h"
#include "foresail/runtime/tensor_memory.h"
#include "foresail/runtime/text_data.h"
#include "foresail/runtime/trainer.h"
#include "foresail/runtime/weights.h"
#include "worker_data.h"
#include "worker_devices.h"
#include "worker_job.h"
#include "worker_measure.h"
#include "worker_weights.h"

namespace foresail::cli {
namespace {

std::string host_name() {
  char name[256] = {};
  gethostname(name, sizeof(name) - 1);
  return name;
}

void print_step(const runtime::Job& job, const runtime::StepSummary& step) {
  const double tokens =
      static_cast<double>(job.training.global_batch_size * job.training.sequence_length);
  const double time = static_cast<double>(step.end_ns - step.start_ns) * 1e-9;
  fmt::print("step {:4}  loss {:.4f}  grad norm {:.4f}  {:.0f} tokens/s  data {:.2f} ms\n",
             step.step, step.loss, step.gradient_norm, tokens / time,
             static_cast<double>(step.data_wait_ns) * 1e-6);
  std::fflush(stdout);
}

/// "rank 3: " under a launcher.
std::string self() {
  const char* rank = std::getenv("RANK");
  return rank == nullptr ? "" : fmt::format("rank {}: ", rank);
}

int status_of(const Error& error) {
  switch (error.code()) {
    case ErrorCode::InvalidInput:
    case ErrorCode::NotFound:
    case ErrorCode::Unsupported:
      return 2;
    case ErrorCode::Device:
    case ErrorCode::Io:
      return 1;
  }
  return 1;
}

std::filesystem::path data_path(const RunOptions& options, const runtime::Job& job) {
  if (!options.data.empty()) return options.data;
  if (!job.training.data.empty()) return job.training.data;
  return runtime::TextData::default_path();
}

/// Refuses what cannot be named or does not fit, before anything starts.
void check_weight_options(const RunOptions& options, const runtime::Job& job) {
  if (!options.save_weights.empty()) runtime::architecture_of(job.model);
  if (options.weights.empty()) return;
  runtime::check_weights(weights_file(options.weights), job.model, job.training.sequence_length);
}

}  // namespace

int report_failure(const std::exception_ptr& failure) {
  try {
    std::rethrow_exception(failure);
  } catch (const Error& error) {
    const char* hint = error.code() == ErrorCode::Device ? " (lost a peer?)" : "";
    fmt::print(stderr, "foresail-worker: {}{}{}\n", self(), error.what(), hint);
    return status_of(error);
  } catch (const std::exception& error) {
    fmt::print(stderr, "foresail-worker: {}internal error: {}\n", self(), error.what());
    return 1;
  }
}

planner::Plan load_executable_plan(const std::filesystem::path& path, int processes) {
  planner::Plan plan = planner::load_plan(path);
  const planner::Layout& layout = plan.layout;
  if (layout.world_size() != processes) {
    throw Error(ErrorCode::InvalidInput,
                fmt::format("{}: tp {} * cp {} * dp {} * pp {} = {} ranks, but {} processes run",
                            path.string(), layout.tp, layout.cp, layout.dp, layout.pp,
                            layout.world_size(), processes));
  }
  const planner::Feasibility feasibility = planner::check(plan);
  if (!feasibility.broken.empty()) {
    throw Error(ErrorCode::InvalidInput, path.string() + ": " + feasibility.broken.front().message);
  }
  if (!feasibility.out_of_memory.empty()) {
    throw Error(ErrorCode::InvalidInput, path.string() + ": " + feasibility.out_of_memory);
  }
  return plan;
}

void leave(const RankEnvironment& environment, runtime::Store& store) {
  store.set("run/left/" + std::to_string(environment.rank), "");
  if (environment.rank != 0) return;
  for (int rank = 1; rank < environment.world_size; ++rank) {
    store.get("run/left/" + std::to_string(rank));
  }
}

void agree_on_digests(const RankEnvironment& environment, const runtime::Job& job,
                      runtime::Store& store) {
  const std::string mine =
      "plan " + job.plan_digest + ", program " + program::program_digest(job.program);
  const auto key = [](int rank) { return "digest/" + std::to_string(rank); };
  store.set(key(environment.rank), mine);
  if (environment.rank == 0) {
    std::string verdict;
    for (int rank = 1; rank < environment.world_size && verdict.empty(); ++rank) {
      const std::string other = store.get(key(rank));
      if (other == mine) continue;
      verdict = fmt::format("rank {} runs another plan: {}; rank 0: {}", rank, other, mine);
    }
    store.set("digest/verdict", verdict.empty() ? "agreed" : verdict);
  }
  const std::string verdict = store.get("digest/verdict");
  if (verdict == "agreed") return;
  // Rank 0 serves the store: it stays until everybody has read the verdict.
  leave(environment, store);
  throw Error(ErrorCode::InvalidInput, verdict);
}

void run_rank(const RunOptions& options) {
  keep_freed_memory();
  runtime::TensorMemory::count();
  demand_device(options.device);
  const RankEnvironment environment = read_environment();
  const TraceRanks traced = parse_trace_ranks(options.trace_ranks);
  const planner::Plan plan = load_executable_plan(options.plan, environment.world_size);
  const runtime::Job job = make_job(plan);
  runtime::check_supported(job);
  check_weight_options(options, job);
  const int steps = options.steps.value_or(job.training.steps);
  if (steps < 1) throw Error(ErrorCode::InvalidInput, fmt::format("steps {}, must be > 0", steps));
  const auto store = connect_store(environment);
  agree_on_digests(environment, job, *store);
  const auto data =
      open_data({.job = &job, .path = data_path(options, job), .host = host_name(), .steps = steps},
                environment, *store);
  const runtime::GlooEndpoint endpoint(endpoint_options(environment));
  runtime::RankMeasurement measurement;
  measurement.rank = RankId{static_cast<std::uint32_t>(environment.rank)};
  measurement.host = host_name();
  measurement.plan_digest = job.plan_digest;
  measurement.program_digest = program::program_digest(job.program);
  runtime::Trainer trainer({.job = &job,
                            .rank = measurement.rank,
                            .store = store.get(),
                            .endpoint = &endpoint,
                            .data = data.get(),
                            .failed = [](const std::exception_ptr& failure) {
                              const int status = report_failure(failure);
                              std::fflush(nullptr);
                              std::_Exit(status);
                            }});
  if (!options.weights.empty()) trainer.read_weights(weights_file(options.weights));
  for (int step = 0; step < steps; ++step) {
    measurement.steps.push_back(trainer.run_step());
    if (environment.rank == 0) print_step(job, measurement.steps.back());
  }
  measurement.spans = trainer.spans();
  const auto all = gather(environment, traced, job, std::move(measurement), *store);
  if (environment.rank == 0) {
    std::filesystem::create_directories(options.output);
    write_run(options.output, job, all);
  }
  if (!options.save_weights.empty()) {
    save_weights(options.save_weights, job, trainer, environment, *store);
  }
  leave(environment, *store);
}

}  // namespace foresail::cli
