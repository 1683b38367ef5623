#include "worker_run.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>

#include "foresail/base/error.h"
#include "foresail/base/quantity.h"
#include "foresail/runtime/tensor_memory.h"
#include "foresail/runtime/text_data.h"
#include "foresail/runtime/trainer.h"
#include "foresail/runtime/weights.h"
#include "output_checks.h"
#include "worker_data.h"
#include "worker_devices.h"
#include "worker_hang.h"
#include "worker_job.h"
#include "worker_measure.h"
#include "worker_metrics.h"
#include "worker_rendezvous.h"
#include "worker_start.h"
#include "worker_weights.h"

namespace foresail::cli {
namespace {

std::string host_name() {
  char name[256] = {};
  gethostname(name, sizeof(name) - 1);
  return name;
}

/// "rank 3: " under a launcher.
std::string self() {
  const char* rank = std::getenv("RANK");
  return rank == nullptr ? "" : fmt::format("rank {}: ", rank);
}

std::filesystem::path data_path(const RunOptions& options, const runtime::Job& job) {
  if (!options.data.empty()) return options.data;
  if (!job.training.data.empty()) return job.training.data;
  return runtime::TextData::default_path();
}

/// The file itself appears with the first step.
/// Refuses what cannot be named or does not fit, before anything starts.
void check_weight_options(const RunOptions& options, const runtime::Job& job) {
  if (!options.save_weights.empty()) runtime::architecture_of(job.model);
  if (options.weights.empty()) return;
  runtime::check_weights(weights_file(options.weights), job.model, job.training.sequence_length);
}

}  // namespace

int report_failure(const std::exception_ptr& failure) {
  const Failure found = describe(failure);
  fmt::print(stderr, "foresail-worker: {}{}\n", self(), found.text);
  return found.status;
}

ExecutablePlan load_executable_plan(const std::filesystem::path& path, int processes) {
  planner::Plan plan = planner::load_plan(path);
  const planner::Layout& layout = plan.layout;
  if (layout.world_size() != processes) {
    throw Error(
        ErrorCode::InvalidInput,
        fmt::format("{}: tp {} * cp {} * dp {} * pp {} = {} ranks, but {} (--launch {} "
                    "starts all on this host)",
                    path.string(), layout.tp, layout.cp, layout.dp, layout.pp, layout.world_size(),
                    processes == 1 ? std::string("1 process runs")
                                   : fmt::format("{} processes run", processes),
                    layout.world_size()));
  }
  const planner::Feasibility feasibility = planner::check(plan);
  if (!feasibility.broken.empty()) {
    throw Error(ErrorCode::InvalidInput, path.string() + ": " + feasibility.broken.front().message);
  }
  if (!feasibility.out_of_memory.empty()) {
    throw Error(ErrorCode::InvalidInput, path.string() + ": " + feasibility.out_of_memory);
  }
  runtime::Job job = make_job(plan);
  try {
    runtime::check_supported(job);
  } catch (const Error& problem) {
    throw Error(problem.code(), path.string() + ": " + problem.what());
  }
  return {std::move(plan), std::move(job)};
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
  throw Error(ErrorCode::InvalidInput, verdict);
}

namespace {

/// What is known before ranks meet.
struct Prepared {
  Prepared(const RunOptions& given, const RankEnvironment& environment)
      : Prepared(given, load_executable_plan(given.plan, environment.world_size)) {
    device = open_device(given.device, environment);
  }
  Prepared(const RunOptions& given, ExecutablePlan loaded)
      : options(given),
        traced(parse_trace_ranks(given.trace_ranks)),
        plan(std::move(loaded.plan)),
        job(std::move(loaded.job)),
        steps(given.steps.value_or(job.training.steps)) {
    check_weight_options(options, job);
    if (steps < 1) {
      throw Error(ErrorCode::InvalidInput, fmt::format("steps {}, must be > 0", steps));
    }
  }
  RunOptions options;
  TraceRanks traced;
  planner::Plan plan;
  runtime::Job job;
  int steps;
  std::unique_ptr<runtime::CudaDevice> device;  ///< null: on the CPU
};

/// Throws Error{InvalidInput} if `text` is no time or less than `least`.
std::chrono::milliseconds time_of(const std::string& option, const std::string& text,
                                  const std::string& least) {
  const Duration time = [&] {
    try {
      return parse_duration(text);
    } catch (const Error& error) {
      throw Error(error.code(), fmt::format("{}: {}", option, error.what()));
    }
  }();
  if (time < parse_duration(least)) {
    throw Error(ErrorCode::InvalidInput, fmt::format("{}: {}: must be >= {}", option, text, least));
  }
  return std::chrono::duration_cast<std::chrono::milliseconds>(time);
}

/// Other ranks may ask what this one does in its steps, while this is there.
class WatchedSteps {
 public:
  WatchedSteps(Rendezvous& rendezvous, const runtime::Trainer& trainer, const StepLimit& limit)
      : rendezvous_(rendezvous) {
    rendezvous.watch_steps([&trainer, &limit] {
      return Rendezvous::StepView{trainer.activity(), limit.now()};
    });
  }
  ~WatchedSteps() { rendezvous_.end_of_steps(); }
  WatchedSteps(const WatchedSteps&) = delete;
  WatchedSteps& operator=(const WatchedSteps&) = delete;

 private:
  Rendezvous& rendezvous_;
};

/// How ranks on CPUs reach each other.
runtime::GlooEndpoint::Options gloo_of(const RunOptions& options, const Rendezvous& rendezvous) {
  runtime::GlooEndpoint::Options place = endpoint_options(rendezvous.store_host());
  place.connect_timeout = wait_limit(options);
  return place;
}

/// A loss that is no number cannot become one again.
void demand_numbers(const runtime::StepSummary& step) {
  if (std::isfinite(step.loss) && std::isfinite(step.gradient_norm)) return;
  throw Diverged(
      fmt::format("step {}: loss {}, gradient norm {}", step.step, step.loss, step.gradient_norm));
}

/// Trains, and on rank 0 says of each step what became of it.
void train(const Prepared& prepared, Rendezvous& rendezvous, runtime::Trainer& trainer,
           runtime::RankMeasurement& measurement) {
  const StepMeter meter(prepared.plan, prepared.job);
  StepLimit limit(step_limit(prepared.options));
  const WatchedSteps watched(rendezvous, trainer, limit);
  const bool speaks = measurement.rank == RankId{0};
  const std::string& file = prepared.options.metrics;
  std::unique_ptr<JsonLines> lines;
  std::size_t seen = 0;
  for (int step = 0; step < prepared.steps; ++step) {
    measurement.steps.push_back(trainer.run_step());
    const auto& done = measurement.steps.back();
    limit.add(std::chrono::nanoseconds(done.end_ns - done.start_ns));
    demand_numbers(measurement.steps.back());
    if (!speaks) continue;
    const auto& spans = trainer.spans();
    const StepMetrics metrics =
        meter.of_rank(measurement.steps.back(), measurement.rank,
                      {spans.begin() + static_cast<std::ptrdiff_t>(seen), spans.end()});
    seen = spans.size();
    if (!prepared.options.is_quiet) fmt::print("{}\n", to_text(metrics));
    std::fflush(stdout);
    if (file.empty()) continue;
    if (lines == nullptr) lines = std::make_unique<JsonLines>(file);
    lines->add(to_document(metrics));
  }
  measurement.spans = trainer.spans();
}

/// What rank 0 writes, after the last step or during them.
void check_outputs(const RunOptions& options) {
  demand_folder("-o", options.output);
  if (!options.save_weights.empty()) demand_folder("--save-weights", options.save_weights);
  demand_file("--metrics", options.metrics);
}

/// The part of a run in which ranks depend on each other.
void run_together(const Prepared& prepared, Rendezvous& rendezvous, StartClock clock) {
  const RankEnvironment& environment = rendezvous.environment();
  const RunOptions& options = prepared.options;
  const runtime::Job& job = prepared.job;
  runtime::Store& store = rendezvous.store();
  if (environment.rank == 0) check_outputs(options);
  agree_on_digests(environment, job, store);
  clock.end("digests", rendezvous.take_use());
  const auto data = open_data(
      {.job = &job, .path = data_path(options, job), .host = host_name(), .steps = prepared.steps},
      environment, store);
  clock.end("data", rendezvous.take_use());
  const auto endpoint =
      make_endpoint(environment, prepared.device.get(), gloo_of(options, rendezvous));
  runtime::RankMeasurement measurement;
  measurement.rank = RankId{static_cast<std::uint32_t>(environment.rank)};
  measurement.host = host_name();
  measurement.plan_digest = job.plan_digest;
  measurement.program_digest = program::program_digest(job.program);
  runtime::Trainer trainer(
      {.job = &job,
       .rank = measurement.rank,
       .store = &store,
       .endpoint = endpoint.get(),
       .data = data.get(),
       .device = prepared.device.get(),
       .failed = [&](const std::exception_ptr& failure) { rendezvous.fail(failure); },
       .connected = [&] { clock.end_apart("addresses", "groups", rendezvous.take_use()); }});
  if (!options.weights.empty()) trainer.read_weights(weights_file(options.weights));
  clock.end("weights", rendezvous.take_use());
  if (environment.rank == 0 && !options.is_quiet) fmt::print("start  {}\n", clock.to_text());
  train(prepared, rendezvous, trainer, measurement);
  const StepMeter meter(prepared.plan, job);
  auto all = gather(environment, prepared.traced, job, std::move(measurement), store);
  const auto starts = gather_starts(environment, clock.to_document(), store);
  if (environment.rank == 0) {
    std::filesystem::create_directories(options.output);
    write_run(options.output,
              {.job = &job, .meter = &meter, .ranks = std::move(all), .start = slowest(starts)});
  }
  if (!options.save_weights.empty()) {
    rendezvous.remove_on_failure(unfinished_weights(options.save_weights));
    save_weights(options.save_weights, job, trainer, environment, store);
  }
}

}  // namespace

std::chrono::milliseconds wait_limit(const RunOptions& options) {
  return time_of("--timeout", options.timeout, "100 ms");
}

std::optional<std::chrono::milliseconds> step_limit(const RunOptions& options) {
  if (options.step_timeout.empty()) return std::nullopt;
  return time_of("--step-timeout", options.step_timeout, "1 s");
}

void run_rank(const RunOptions& options) {
  keep_freed_memory();
  runtime::TensorMemory::count();
  demand_devices(options.device, 1, "a run");
  const RankEnvironment environment = read_environment();
  const auto limit = wait_limit(options);
  step_limit(options);
  const Prepared prepared(options, environment);
  StartClock clock;
  Rendezvous rendezvous({.environment = environment, .store = options.store, .timeout = limit});
  try {
    clock.end("store", rendezvous.take_use());
    run_together(prepared, rendezvous, clock);
    rendezvous.leave();
  } catch (...) {
    rendezvous.fail(std::current_exception());
  }
}

}  // namespace foresail::cli
