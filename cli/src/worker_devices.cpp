#include "worker_devices.h"

#include <fmt/format.h>

#include "foresail/base/error.h"
#include "foresail/runtime/nccl.h"

namespace foresail::cli {
namespace {

std::string describe_cuda() {
  const runtime::CudaSight sight = runtime::look_for_cuda();
  if (sight.devices == 0) return fmt::format("{}; no device: {}", sight.build, sight.reason);
  std::string text = fmt::format("{}; {} devices", sight.build, sight.devices);
  for (int index = 0; index < sight.devices; ++index) {
    text += fmt::format("; {}: {}", index, runtime::CudaDevice(index).description());
  }
  return text;
}

}  // namespace

void print_devices() {
  fmt::print("cuda: {}\n", describe_cuda());
  try {
    fmt::print("nccl: {}\n", runtime::describe_nccl());
  } catch (const Error& missing) {
    fmt::print("nccl: {}\n", missing.what());
  }
}

void demand_devices(const std::string& device, int count, const std::string& who) {
  if (device == "cpu") return;
  if (device != "cuda") {
    throw Error(ErrorCode::InvalidInput,
                fmt::format("--device: \"{}\" is not one of cpu, cuda", device));
  }
  const runtime::CudaSight sight = runtime::look_for_cuda();
  if (sight.devices == 0) {
    throw Error(ErrorCode::Unsupported, "--device cuda: no CUDA device: " + sight.reason);
  }
  if (count <= sight.devices) return;
  throw Error(ErrorCode::Unsupported,
              fmt::format("--device cuda: {} needs {} CUDA devices, and this host has {}", who,
                          count, sight.devices));
}

std::unique_ptr<runtime::CudaDevice> open_device(const std::string& device,
                                                 const RankEnvironment& environment) {
  demand_devices(device, environment.local_rank + 1,
                 fmt::format("local rank {}", environment.local_rank));
  if (device == "cpu") return nullptr;
  return std::make_unique<runtime::CudaDevice>(environment.local_rank);
}

std::unique_ptr<runtime::Endpoint> make_endpoint(const RankEnvironment& environment,
                                                 runtime::CudaDevice* device,
                                                 const runtime::GlooEndpoint::Options& gloo) {
  if (device == nullptr) return std::make_unique<runtime::GlooEndpoint>(gloo);
  runtime::NcclEndpoint::Options place;
  place.rank = environment.rank;
  place.world_size = environment.world_size;
  place.streams = device;
  return std::make_unique<runtime::NcclEndpoint>(place);
}

}  // namespace foresail::cli
