#include "foresail/scenarios/simulate.h"

#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <ctime>

#include "foresail/base/error.h"
#include "foresail/base/quantity.h"
#include "foresail/planner/memory_bound.h"
#include "foresail/report/breakdown.h"
#include "foresail/scenarios/spread.h"

namespace foresail::scenarios {
namespace {

using planner::Plan;
using program::Program;
using program::Trace;
using topologies::Cluster;

constexpr int kBreakdownRanksMax = 64;

double cpu_seconds() {
  return static_cast<double>(std::clock()) / CLOCKS_PER_SEC;
}

Bytes peak_memory() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  return Bytes(std::int64_t{usage.ru_maxrss} * 1024);
}

// The closed form where it holds, else the sum over this model's own layers.
models::FlopConvention convention_of(const models::Model& model) {
  const bool is_closed = model.activation == models::Activation::Gelu &&
                         model.ffn == 4 * model.hidden && model.kv_heads == model.heads &&
                         model.head_size * model.heads == model.hidden &&
                         model.experts.count == 0 && model.latent.kv_rank == 0;
  return {is_closed ? models::FlopFormula::Korthikanti : models::FlopFormula::Exact, false};
}

// FLOPs that one data-parallel replica executes anew in the backward passes of a step.
double recomputed_flops(const Program& program) {
  double total = 0;
  for (const program::StageProgram& stage : program.stages) {
    for (const program::Op& op : stage.ops) {
      if (op.kind != program::OpKind::Compute) continue;
      for (const Kernel& kernel : program.kernel_lists[op.kernels.value].kernels) {
        if (kernel.name.ends_with(".recompute")) total += kernel.flops.count();
      }
    }
  }
  return total * program.grid.size(program::Axis::Tp) * program.grid.size(program::Axis::Cp);
}

/// Of the stage that needs most.
void set_memory(const Plan& plan, const Program& program, report::StepResult& result) {
  const auto most = std::ranges::max_element(program.memory, {}, &program::MemoryNeed::peak);
  const int stage = static_cast<int>(most - program.memory.begin());
  const Bytes upper = planner::memory_bound(plan, program, stage).upper();
  result.memory = *most;
  result.memory_upper = upper;
  const Bytes limit = program.memory_limit;
  if (limit.count() > 0 && upper > limit && most->peak() <= limit) {
    result.notes.push_back(fmt::format(
        "fits by the point estimate of memory, but may need up to {} of {} (explain memory)",
        foresail::to_text(upper), foresail::to_text(limit)));
  }
}

Document collision_document(const sim::StepOutcome& outcome) {
  Document collisions = Document::array();
  for (const sim::Collision& each : outcome.collisions) {
    collisions.push_back({{"link", each.link},
                          {"flows", each.flows},
                          {"limiting_s", to_seconds(each.limiting)},
                          {"worst_at_s", to_seconds(each.when - SimTime{})},
                          {"who", each.names}});
  }
  return collisions;
}

Document network_document(const Plan& plan, const sim::StepOutcome& outcome) {
  Document network = topologies::to_document(plan.network);
  Document links = Document::array();
  for (const sim::LinkLoad& link : outcome.links) {
    links.push_back({{"link", link.name},
                     {"carried_bytes", link.carried.count()},
                     {"utilisation", link.utilisation},
                     {"sharers_max", link.sharers_max}});
  }
  network["most_loaded_links"] = std::move(links);
  network["loaded_links"] = outcome.loaded_links;
  network["collided_links"] = outcome.collided_links;
  network["collisions"] = collision_document(outcome);
  network["solves"] = outcome.solves;
  if (outcome.stalls > 0) {
    network["stalled_flows"] = outcome.stalls;
    network["longest_stall_s"] = to_seconds(outcome.longest_stall);
  }
  return network;
}

Document jobs_document(const Conditions& met, const sim::StepOutcome& outcome) {
  FORESAIL_EXPECT(outcome.rounds.size() == met.jobs.size());
  Document jobs = Document::array();
  for (std::size_t j = 0; j < met.jobs.size(); ++j) {
    jobs.push_back({{"job", met.jobs[j].name},
                    {"at_s", to_seconds(met.jobs[j].at)},
                    {"repeats", met.jobs[j].repeats},
                    {"rounds", outcome.rounds[j]}});
  }
  return jobs;
}

void add_conditions(const Conditions& met, const sim::StepOutcome& outcome,
                    report::StepResult& result) {
  if (!met.jobs.empty()) result.network["other_jobs"] = jobs_document(met, outcome);
  for (std::string& note : unmet(met, outcome.iteration)) result.notes.push_back(std::move(note));
}

bool is_hashed(const sim::SimulatorOptions& options) {
  return options.fidelity == sim::Fidelity::Flow &&
         (options.network.routing == topologies::Routing::Ecmp ||
          options.network.routing == topologies::Routing::DModK);
}

// The same step where every flow is spread over all shortest paths: no hash, no collision.
Duration without_collisions(const Plan& plan, const Program& program, const Cluster& cluster,
                            sim::SimulatorOptions options, const Conditions* conditions) {
  options.network.routing = topologies::Routing::Spray;
  options.network.sharing = topologies::Sharing::MaxMin;
  return simulate_jobs(plan, program, cluster, options, conditions).iteration;
}

// Ranks whose spans the breakdown averages: all of a small job, else all stages of evenly spaced
// replicas.
sim::TraceRanks breakdown_ranks(const Program& program, const sim::StepOutcome& outcome) {
  const int world = program.grid.world_size();
  if (world <= kBreakdownRanksMax) return {sim::TraceRanks::Kind::All, {}};
  const auto stages = program.stages.size();
  const std::size_t replicas = outcome.units.size() / stages;
  const std::size_t wanted = std::clamp<std::size_t>(kBreakdownRanksMax / stages, 1, replicas);
  sim::TraceRanks ranks{sim::TraceRanks::Kind::List, {}};
  for (std::size_t i = 0; i < wanted; ++i) {
    for (std::size_t s = 0; s < stages; ++s) {
      ranks.list.push_back(outcome.units[i * replicas / wanted * stages + s].ranks.front());
    }
  }
  return ranks;
}

// What is known of the error of such predictions. A measured profile is no published row.
void set_intervals(const Plan& plan, const SimulateOptions& options, report::StepResult& result) {
  const Spread spread = load_spread();
  const Novelty novelty = options.profile != nullptr
                              ? Novelty::Device
                              : novelty_of(plan, known_stack(plan, load_stacks()), spread);
  const StepIntervals found = intervals(result.iteration_time, novelty, spread);
  result.interval_50 = found.half;
  result.interval_90 = found.ninety;
  const std::string_view what =
      novelty == Novelty::Configuration ? "a layout or model that the fit had not seen"
      : novelty == Novelty::Source      ? "software or a fabric that the fit had not seen"
                                        : "a device that the fit had not seen";
  result.notes.push_back(fmt::format("intervals: errors on published steps with {}", what));
}

void stamp(const Plan& plan, const Program& program, Trace& trace) {
  trace.version = version();
  trace.plan_digest = plan.digest();
  trace.program_digest = program::program_digest(program);
}

}  // namespace

std::string version() {
  return FORESAIL_VERSION;
}

std::string reasons(const planner::Feasibility& feasibility) {
  std::string text;
  for (const planner::BrokenLaw& law : feasibility.broken) {
    text += fmt::format("{}: {}\n", law.name, law.message);
  }
  if (!feasibility.out_of_memory.empty()) {
    text += fmt::format("out of memory: {}\n", feasibility.out_of_memory);
  }
  return text;
}

Answer simulate(const Plan& plan, const SimulateOptions& options) {
  const double cpu_start = cpu_seconds();
  const auto wall_start = std::chrono::steady_clock::now();
  Answer answer;
  answer.feasibility = planner::check(plan);
  if (!answer.feasibility.broken.empty()) return answer;

  answer.program = lower_verified(plan);
  const topologies::Cluster cluster(plan.cluster);
  sim::SimulatorOptions simulator = simulator_options(plan, options.prediction());
  simulator.seed = options.seed.value_or(plan.seed);
  simulator.keeps_all_links = options.keeps_all_links;
  sim::StepOutcome outcome =
      simulate_jobs(plan, answer.program, cluster, simulator, options.conditions);
  simulator.keeps_all_links = false;
  answer.links = std::move(outcome.all_links);
  answer.failure = outcome.failure;
  if (!outcome.failure.empty()) return answer;

  answer.trace = sim::make_trace(answer.program, outcome, options.trace_ranks);
  stamp(plan, answer.program, answer.trace);
  answer.trace.seed = simulator.seed;
  answer.trace.fidelity = std::string(to_string(options.fidelity));
  answer.trace.program = program::to_text(answer.program);

  report::StepResult result;
  result.iteration_time = outcome.iteration;
  set_rates(plan, answer.program, result);
  set_memory(plan, answer.program, result);
  const sim::TraceRanks ranks = breakdown_ranks(answer.program, outcome);
  result.breakdown =
      report::break_down(answer.program, sim::make_trace(answer.program, outcome, ranks));
  result.network = network_document(plan, outcome);
  if (options.conditions != nullptr) add_conditions(*options.conditions, outcome, result);
  if (outcome.collided_links > 0 && is_hashed(simulator)) {
    const Duration ideal =
        without_collisions(plan, answer.program, cluster, simulator, options.conditions);
    result.network["collision_free_s"] = to_seconds(ideal);
    result.network["collision_cost_s"] = to_seconds(outcome.iteration - ideal);
  }
  result.fidelity = answer.trace.fidelity;
  result.seed = simulator.seed;
  result.version = answer.trace.version;
  result.plan_digest = answer.trace.plan_digest;
  result.program_digest = answer.trace.program_digest;
  result.notes.push_back(outcome.fold_note);
  if (ranks.kind == sim::TraceRanks::Kind::List) {
    result.notes.push_back(fmt::format("breakdown: mean over {} of {} ranks", ranks.list.size(),
                                       answer.program.grid.world_size()));
  }
  if (!answer.feasibility.out_of_memory.empty()) {
    result.notes.push_back("cannot run, out of memory: " + answer.feasibility.out_of_memory);
  }
  report::SimulatorCost cost;
  cost.events = static_cast<std::int64_t>(outcome.events);
  cost.cpu_s = cpu_seconds() - cpu_start;
  cost.wall_s =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - wall_start).count();
  cost.peak_rss = peak_memory();
  result.simulator = cost;
  set_intervals(plan, options, result);
  answer.result = std::move(result);
  return answer;
}

void set_rates(const Plan& plan, const Program& program, report::StepResult& result) {
  const double seconds = to_seconds(result.iteration_time);
  const int gpus = program.grid.world_size();
  const models::FlopConvention convention = convention_of(plan.model);
  const double model_flops = models::model_flops(plan.model, plan.training.global_batch_size,
                                                 plan.training.sequence_length, convention)
                                 .count();
  const double peak = plan.cluster.device.peak(plan.training.precision).per_second();
  const double recomputed = recomputed_flops(program) * program.grid.size(program::Axis::Dp);
  result.tokens_per_s =
      static_cast<double>(plan.training.global_batch_size * plan.training.sequence_length) /
      seconds;
  result.tokens_per_s_per_gpu = result.tokens_per_s / gpus;
  result.model_tflops_per_gpu = model_flops / seconds / gpus * 1e-12;
  result.mfu = model_flops / seconds / gpus / peak;
  result.hfu = (model_flops + recomputed) / seconds / gpus / peak;
  result.mfu_formula = models::to_text(convention);
  result.mfu_causal = convention.causal;
  result.peak_tflops = peak * 1e-12;
}

report::StepResult measured_result(const Plan& plan, const Program& program, const Trace& trace) {
  std::vector<Duration> steps = trace.steps;
  if (steps.size() > 1) steps.erase(steps.begin());  // the first step warms up
  FORESAIL_EXPECT(!steps.empty());
  std::ranges::sort(steps);
  report::StepResult result;
  const std::size_t half = steps.size() / 2;
  result.iteration_time = steps.size() % 2 == 1 ? steps[half] : (steps[half - 1] + steps[half]) / 2;
  set_rates(plan, program, result);
  set_memory(plan, program, result);
  result.breakdown = report::scaled_to(report::break_down(program, trace), result.iteration_time);
  result.fidelity = trace.fidelity;
  result.seed = trace.seed;
  result.version = trace.version;
  result.plan_digest = trace.plan_digest;
  result.program_digest = trace.program_digest;
  result.notes.push_back(fmt::format(
      "measured: median of {} steps, which the breakdown's means over them are scaled to",
      steps.size()));
  return result;
}

}  // namespace foresail::scenarios
