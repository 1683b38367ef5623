// What the executor costs: CPU time of steps through the Trainer (Program, lanes, spans, checks,
// autograd graph) over that of the same libtorch calls in a plain loop, on one process. Steps of
// both alternate, and a row is the median over pairs of steps; both must find the same losses.
//
//     foresail-bench-executor [PAIRS]
#include <fmt/format.h>
#include <time.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <exception>
#include <string>
#include <vector>

#include "foresail/base/error.h"
#include "foresail/planner/plan.h"
#include "foresail/runtime/gloo.h"
#include "foresail/runtime/tensor_memory.h"
#include "foresail/runtime/text_data.h"
#include "foresail/runtime/trainer.h"
#include "plain_training.h"
#include "worker_environment.h"
#include "worker_job.h"
#include "worker_thread.h"

namespace foresail::bench {
namespace {

namespace fs = std::filesystem;

const fs::path kSource = FORESAIL_SOURCE_DIR;

struct Size {
  int hidden = 0, heads = 0, layers = 0, sequence = 0, microbatch = 0, global_batch = 0;
};

/// From the smallest that tests train to the largest that one would train on a core.
constexpr Size kSizes[] = {
    {64, 2, 2, 32, 1, 4},   {128, 4, 4, 64, 1, 4},  {128, 4, 4, 128, 4, 8}, {256, 8, 4, 256, 2, 4},
    {256, 8, 8, 256, 2, 4}, {512, 8, 4, 256, 2, 4}, {512, 8, 8, 256, 2, 4},
};

runtime::Job make_job(const Size& size) {
  planner::Plan plan;
  const std::string model =
      fmt::format("{{base: gpt_small_cpu, hidden: {}, heads: {}, layers: {}}}", size.hidden,
                  size.heads, size.layers);
  plan.model =
      models::resolve_model(Yaml::parse(model, "the benchmark"), {kSource / "models/catalogue"});
  plan.cluster = topologies::resolve_cluster(
      Yaml::parse("{name: host, gpus: 1}", "the benchmark"),
      {kSource / "topologies/catalogue/clusters", kSource / "topologies/catalogue/devices",
       kSource / "topologies/catalogue"});
  plan.placement = program::Placement::identity(1);
  plan.stack.flash_attention = false;
  plan.layout.microbatch_size = size.microbatch;
  plan.training.global_batch_size = size.global_batch;
  plan.training.sequence_length = size.sequence;
  plan.training.precision = DType::Fp32;
  return cli::make_job(plan);
}

runtime::TextData open_text(const runtime::Job& job) {
  return runtime::TextData({.path = runtime::TextData::default_path(),
                            .sequence_length = job.training.sequence_length,
                            .seed = job.seed});
}

/// CPU seconds of the whole process, all threads.
double cpu_seconds() {
  timespec now{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

template <class Step>
double cpu_of(const Step& step) {
  const double start = cpu_seconds();
  step();
  return cpu_seconds() - start;
}

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

void expect_equal(double ours, double plain, const char* what) {
  if (std::abs(ours / plain - 1) <= 1e-6) return;
  throw Error(
      ErrorCode::InvalidInput,
      fmt::format("{} {} through the executor, but {} in the plain loop", what, ours, plain));
}

void measure(const Size& size, int pairs) {
  const runtime::Job job = make_job(size);
  runtime::MemoryStore store{std::chrono::seconds(10)};
  const runtime::GlooEndpoint gloo({.timeout = std::chrono::seconds(10)});
  runtime::TextData data = open_text(job);
  const runtime::TextData plain_data = open_text(job);
  runtime::Trainer trainer(
      {.job = &job, .rank = RankId{0}, .store = &store, .endpoint = &gloo, .data = &data});
  PlainTraining plain(job, plain_data);
  // malloc treats the first thread of a process apart from all others, among which the lanes are.
  const auto cpu = runtime::make_cpu_device();
  runtime::WorkerThread thread(*cpu);
  std::vector<double> ratios, executor_s, plain_s;
  for (int pair = 0; pair < pairs + 1; ++pair) {
    runtime::StepSummary ours;
    PlainTraining::Summary theirs;
    const auto run_ours = [&] { ours = trainer.run_step(); };
    const auto run_plain = [&] { thread.submit([&] { theirs = plain.run_step(); }).get(); };
    const bool is_first = pair % 2 == 0;
    double executor = is_first ? cpu_of(run_ours) : 0;
    const double loop = cpu_of(run_plain);
    if (!is_first) executor = cpu_of(run_ours);
    expect_equal(ours.loss, theirs.loss, "loss");
    expect_equal(ours.gradient_norm, theirs.gradient_norm, "gradient norm");
    if (pair == 0) continue;  // first touch of memory
    ratios.push_back(executor / loop);
    executor_s.push_back(executor);
    plain_s.push_back(loop);
  }
  fmt::print("{:6} {:6} {:8} {:10} {:12} {:11.2f} {:8.2f} {:+9.2f} %\n", size.hidden, size.layers,
             size.sequence, size.microbatch, size.global_batch, 1e3 * median(executor_s),
             1e3 * median(plain_s), 100 * (median(ratios) - 1));
  std::fflush(stdout);
}

int run(int pairs) {
  // As foresail-worker does.
  cli::keep_freed_memory();
  runtime::TensorMemory::count();
  runtime::use_one_core();
  fmt::print(
      "hidden layers sequence microbatch global_batch executor_ms plain_ms  overhead "
      "(CPU time, medians of {} pairs of steps)\n",
      pairs);
  for (const Size& size : kSizes) measure(size, pairs);
  return 0;
}

}  // namespace
}  // namespace foresail::bench

int main(int count, char** arguments) {
  try {
    const int pairs = count > 1 ? std::atoi(arguments[1]) : 20;
    if (pairs < 1) {
      fmt::print(stderr, "foresail-bench-executor: PAIRS must be at least 1\n");
      return 2;
    }
    return foresail::bench::run(pairs);
  } catch (const std::exception& error) {
    fmt::print(stderr, "foresail-bench-executor: {}\n", error.what());
    return 1;
  }
}
