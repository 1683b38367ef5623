#include "worker_calibrate.h"

#include <algorithm>
#include <optional>
#include <thread>

#include "foresail/runtime/calibrate.h"
#include "worker_environment.h"
#include "worker_rendezvous.h"
#include "worker_run.h"

namespace foresail::cli {

namespace {

void calibrate_in(const CalibrateRunOptions& options, Rendezvous& rendezvous) {
  const RankEnvironment& environment = rendezvous.environment();
  std::optional<runtime::Job> job;
  if (!options.plan.empty()) {
    job = load_executable_plan(options.plan, environment.world_size).job;
    agree_on_digests(environment, *job, rendezvous.store());
  }
  const runtime::GlooEndpoint endpoint(endpoint_options(rendezvous.store_host()));
  const program::Profile profile = runtime::calibrate({.job = job ? &*job : nullptr,
                                                       .rank = environment.rank,
                                                       .processes = environment.world_size,
                                                       .store = &rendezvous.store(),
                                                       .endpoint = &endpoint});
  if (environment.rank == 0) program::save_profile(profile, options.output);
  rendezvous.leave();
}

}  // namespace

void calibrate_rank(const CalibrateRunOptions& options) {
  keep_freed_memory();
  Rendezvous rendezvous({.environment = read_environment()});
  try {
    calibrate_in(options, rendezvous);
  } catch (...) {
    rendezvous.fail(std::current_exception());
  }
}

int default_processes(const std::filesystem::path& plan) {
  if (!plan.empty()) return planner::load_plan(plan).layout.world_size();
  return static_cast<int>(std::max(2u, std::thread::hardware_concurrency()));
}

}  // namespace foresail::cli
