#include "worker_calibrate.h"

#include <algorithm>
#include <optional>
#include <thread>

#include "foresail/runtime/calibrate.h"
#include "worker_environment.h"
#include "worker_job.h"
#include "worker_run.h"

namespace foresail::cli {

void calibrate_rank(const CalibrateRunOptions& options) {
  keep_freed_memory();
  const RankEnvironment environment = read_environment();
  std::optional<runtime::Job> job;
  if (!options.plan.empty()) {
    job = make_job(load_executable_plan(options.plan, environment.world_size));
  }
  const auto store = connect_store(environment);
  if (job) agree_on_digests(environment, *job, *store);
  const runtime::GlooEndpoint endpoint(endpoint_options(environment));
  const program::Profile profile = runtime::calibrate({.job = job ? &*job : nullptr,
                                                       .rank = environment.rank,
                                                       .processes = environment.world_size,
                                                       .store = store.get(),
                                                       .endpoint = &endpoint});
  if (environment.rank == 0) program::save_profile(profile, options.output);
  store->set("calibrate/left/" + std::to_string(environment.rank), "");
  for (int rank = 0; environment.rank == 0 && rank < environment.world_size; ++rank) {
    store->get("calibrate/left/" + std::to_string(rank));
  }
}

int default_processes(const std::filesystem::path& plan) {
  if (!plan.empty()) return planner::load_plan(plan).layout.world_size();
  return static_cast<int>(std::max(2u, std::thread::hardware_concurrency()));
}

}  // namespace foresail::cli
