#include "foresail/runtime/calibrate.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <thread>

#include "calibration.h"
#include "foresail/base/document.h"
#include "foresail/base/error.h"

namespace foresail::runtime {
namespace {

std::string processor_name() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("model name")) return line.substr(line.find(':') + 2);
  }
  return "unknown processor";
}

/// The first line of what libtorch says about its BLAS.
std::string blas_name() {
  const std::string config = at::show_config();
  const std::size_t at = config.find("BLAS_INFO=");
  return at == std::string::npos ? "unknown"
                                 : config.substr(at + 10, config.find(',', at) - at - 10);
}

std::string pack_times(const StageTimes& times) {
  Document document{{"op_overhead", times.op_overhead}, {"step_overhead", times.step_overhead}};
  for (const auto& [list, kernels] : times.lists) {
    document["lists"][std::to_string(list)] = kernels;
  }
  return document.dump();
}

StageTimes unpack_times(const std::string& text) {
  const Document document = parse_json(text, "calibration");
  StageTimes times;
  times.op_overhead = document.at("op_overhead");
  times.step_overhead = document.at("step_overhead");
  for (const auto& [list, kernels] : document.at("lists").items()) {
    times.lists[static_cast<std::uint32_t>(std::stoul(list))] = kernels.get<ListTimes>();
  }
  return times;
}

/// Means over the processes that measured the same thing.
StageTimes mean_of(const std::vector<StageTimes>& all) {
  StageTimes mean;
  std::map<std::uint32_t, int> counts;
  for (const StageTimes& times : all) {
    for (const auto& [list, kernels] : times.lists) {
      ListTimes& sum = mean.lists[list];
      sum.resize(kernels.size());
      for (std::size_t i = 0; i < kernels.size(); ++i) sum[i] += kernels[i];
      ++counts[list];
    }
    mean.op_overhead += times.op_overhead / static_cast<double>(all.size());
    mean.step_overhead += times.step_overhead / static_cast<double>(all.size());
  }
  for (auto& [list, kernels] : mean.lists) {
    for (double& seconds : kernels) seconds /= counts.at(list);
  }
  return mean;
}

Kernel without_place(Kernel kernel) {
  kernel.name.clear();
  kernel.after.clear();
  return kernel;
}

void measure_job(const CalibrateOptions& options, program::Profile& profile) {
  check_supported(*options.job);
  const std::string key = "calibrate/stage/";
  options.store->set(key + std::to_string(options.rank), pack_times(measure_stage(options)));
  if (options.rank != 0) return;
  std::vector<StageTimes> all;
  for (int rank = 0; rank < options.processes; ++rank) {
    all.push_back(unpack_times(options.store->get(key + std::to_string(rank))));
  }
  const StageTimes mean = mean_of(all);
  profile.kernels = distinct_kernels(options.job->program, mean.lists);
  profile.op_overhead = duration_from_seconds(mean.op_overhead);
  profile.step_overhead = duration_from_seconds(mean.step_overhead);
}

}  // namespace

std::vector<program::KernelTiming> distinct_kernels(
    const program::Program& program, const std::map<std::uint32_t, ListTimes>& times) {
  struct Sum {
    Kernel kernel;
    double seconds = 0;
    int places = 0;
  };
  std::vector<Sum> sums;
  for (const auto& [list, seconds] : times) {
    const std::vector<Kernel>& kernels = program.kernel_lists[list].kernels;
    FORESAIL_EXPECT(kernels.size() == seconds.size());
    for (std::size_t i = 0; i < kernels.size(); ++i) {
      if (kernels[i].kind == KernelKind::Collective) continue;
      const Kernel kernel = without_place(kernels[i]);
      auto found = std::ranges::find(sums, kernel, &Sum::kernel);
      if (found == sums.end()) found = sums.insert(sums.end(), Sum{kernel, 0, 0});
      found->seconds += seconds[i];
      ++found->places;
    }
  }
  std::vector<program::KernelTiming> timings;
  for (const Sum& sum : sums) {
    timings.push_back({sum.kernel, duration_from_seconds(sum.seconds / sum.places)});
  }
  return timings;
}

program::Profile calibrate(const CalibrateOptions& options) {
  FORESAIL_EXPECT(options.store != nullptr);
  FORESAIL_EXPECT((options.device == nullptr) == options.device_name.empty());
  FORESAIL_EXPECT(options.endpoint != nullptr || options.processes == 1);
  FORESAIL_EXPECT(options.job == nullptr ||
                  options.job->program.grid.world_size() == options.processes);
  const auto lane = options.device != nullptr ? options.device->open_lane() : nullptr;
  program::Profile profile;
  if (options.job != nullptr) {
    measure_job(options, profile);
  } else {
    profile.kernels = sweep_kernels(options.device, sweep_sizes(options.device), options.budget);
  }
  // Nobody measures transfers while others still compute.
  options.store->set("calibrate/ready/" + std::to_string(options.rank), "");
  for (int rank = 0; rank < options.processes; ++rank) {
    options.store->get("calibrate/ready/" + std::to_string(rank));
  }
  profile.transfers = measure_transfers(options);
  profile.host = processor_name();
  profile.date = fmt::format(
      "{:%Y-%m-%d}",
      fmt::gmtime(std::chrono::system_clock::to_time_t(std::chrono::system_clock::now())));
  profile.cores = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  profile.processes = options.processes;
  profile.blas = options.device != nullptr ? options.device_blas : blas_name();
  profile.device = options.device_name;
  if (options.device != nullptr) profile.launch_overhead = measure_launches(*options.device);
  return profile;
}

}  // namespace foresail::runtime
