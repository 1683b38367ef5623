/// \file
/// Measured costs of one host, written by `foresail calibrate`, read by the simulator.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "foresail/base/kernel.h"
#include "foresail/base/units.h"

namespace foresail::program {

/// Time of one kernel: on one core while no more processes ran than the host has cores, or on one
/// device, by the device's clock.
struct KernelTiming {
  Kernel kernel;  ///< name empty; shapes, kind, dtype, flops and bytes filled
  Duration time;
};

/// Time of one collective or message among `ranks` processes of this host.
struct TransferTiming {
  std::string kind;  ///< a Collective's name, or "send"
  int ranks = 2;
  Bytes bytes;  ///< as in nccl-tests
  Duration time;
};

struct Profile {
  std::string host;    ///< processor model as the system names it
  std::string date;    ///< of the measurement, ISO 8601
  int cores = 1;       ///< that the processes shared
  int processes = 1;   ///< that ran at the same time
  std::string blas;    ///< which BLAS libtorch used
  std::string device;  ///< what computed, by name; empty: the host's cores
  std::vector<KernelTiming> kernels;
  std::vector<TransferTiming> transfers;
  Duration op_overhead{};    ///< fixed cost of one Compute op beyond its kernels
  Duration step_overhead{};  ///< fixed cost of one step beyond its ops (optimizer bookkeeping, log)
  Duration launch_overhead{};  ///< of a device: from one kernel to the next, however small
};

/// YAML form (docs/reference/profile.md). load throws Error with file, line and key.
Profile load_profile(const std::filesystem::path& path);
void save_profile(const Profile& profile, const std::filesystem::path& path);

}  // namespace foresail::program
