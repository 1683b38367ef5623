#include "worker_devices.h"

#include <fmt/format.h>

#include "foresail/base/error.h"
#include "foresail/runtime/cuda_device.h"
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

void demand_device(const std::string& device) {
  if (device == "cpu") return;
  if (device != "cuda") {
    throw Error(ErrorCode::InvalidInput,
                fmt::format("--device: \"{}\" is not one of cpu, cuda", device));
  }
  const runtime::CudaSight sight = runtime::look_for_cuda();
  if (sight.devices == 0) {
    throw Error(ErrorCode::Unsupported, "--device cuda: no CUDA device: " + sight.reason);
  }
  throw Error(ErrorCode::Unsupported,
              fmt::format("--device cuda: {} is there, but this version's stages compute on CPUs "
                          "only (docs/guides/gpu.md)",
                          runtime::CudaDevice(0).description()));
}

}  // namespace foresail::cli
