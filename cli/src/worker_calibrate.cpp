#include "worker_calibrate.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <thread>

#include "foresail/runtime/calibrate.h"
#include "worker_devices.h"
#include "worker_environment.h"
#include "worker_rendezvous.h"
#include "worker_run.h"

namespace foresail::cli {

namespace {

void calibrate_in(const CalibrateRunOptions& options, Rendezvous& rendezvous,
                  runtime::CudaDevice* device) {
  const RankEnvironment& environment = rendezvous.environment();
  std::optional<runtime::Job> job;
  if (!options.plan.empty()) {
    job = load_executable_plan(options.plan, environment.world_size).job;
    agree_on_digests(environment, *job, rendezvous.store());
  }
  runtime::CalibrateOptions all;
  all.job = job ? &*job : nullptr;
  all.rank = environment.rank;
  all.processes = environment.world_size;
  all.store = &rendezvous.store();
  std::unique_ptr<runtime::Endpoint> endpoint;
  if (device == nullptr || environment.world_size > 1) {
    endpoint = make_endpoint(environment, device, endpoint_options(rendezvous.store_host()));
  }
  all.endpoint = endpoint.get();
  if (device != nullptr) {
    all.device = device;
    all.device_name = device->description();
    all.device_blas = "cuBLAS of " + runtime::look_for_cuda().build;
  }
  const program::Profile profile = runtime::calibrate(all);
  if (environment.rank == 0) program::save_profile(profile, options.output);
  rendezvous.leave();
}

}  // namespace

void calibrate_rank(const CalibrateRunOptions& options) {
  keep_freed_memory();
  const RankEnvironment environment = read_environment();
  const auto device = open_device(options.device, environment);
  Rendezvous rendezvous({.environment = environment});
  try {
    calibrate_in(options, rendezvous, device.get());
  } catch (...) {
    rendezvous.fail(std::current_exception());
  }
}

int default_processes(const CalibrateRunOptions& options) {
  if (!options.plan.empty()) return planner::load_plan(options.plan).layout.world_size();
  if (options.device == "cuda") return runtime::look_for_cuda().devices;
  return static_cast<int>(std::max(2u, std::thread::hardware_concurrency()));
}

}  // namespace foresail::cli
