// What a stranger's project does with an installed Foresail: reads a catalogue file and prices one
// kernel. Prints one line; fails if the figures are not what the data sheet allows.
#include <cstdio>
#include <filesystem>

#include "foresail/base/yaml.h"
#include "foresail/models/model.h"
#include "foresail/sim/kernel_cost.h"
#include "foresail/topologies/device.h"

int main() {
  using namespace foresail;
  const std::filesystem::path data = FORESAIL_DATA_DIR;
  const models::Model model = models::read_model(Yaml::load(data / "models/gpt3_175b.yaml"));
  const topologies::DeviceSpec device =
      topologies::read_device(Yaml::load(data / "devices/a100_80.yaml"));

  Kernel gemm;
  gemm.kind = KernelKind::Gemm;
  gemm.m = 2048;
  gemm.n = model.ffn / 8;
  gemm.k = model.hidden;
  gemm.flops = Flops(2.0 * static_cast<double>(gemm.m * gemm.n * gemm.k));
  gemm.bytes = Bytes(2 * (gemm.m * gemm.k + gemm.k * gemm.n + gemm.m * gemm.n));
  const double seconds = sim::kernel_seconds(gemm, device);
  const double at_peak = gemm.flops.count() / 312e12;
  std::printf("%s: %.3f ms per GEMM on %s\n", model.name.c_str(), seconds * 1e3,
              device.name.c_str());
  return seconds > at_peak && seconds < 2 * at_peak ? 0 : 1;
}
