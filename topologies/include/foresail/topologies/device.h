/// \file
/// What a GPU (or a CPU's share) can do: data-sheet figures and the constants fitted on published
/// measurements, with provenance.
#pragma once

#include <array>
#include <string>
#include <string_view>

#include "foresail/base/document.h"
#include "foresail/base/dtype.h"
#include "foresail/base/names.h"
#include "foresail/base/units.h"
#include "foresail/base/yaml.h"

namespace foresail::topologies {

enum class DeviceKind { Gpu, Cpu };

/// Which row of NCCL's tuning tables a GPU reads (compute capability 7, 8, 9, 10).
enum class Generation { Volta, Ampere, Hopper, Blackwell };

/// What `foresail collective` needs to know of a GPU beyond its data sheet: its row in NCCL's
/// tables, and two constants fitted on a published one-node table (scripts/fit_collectives).
struct NcclSpec {
  Generation generation = Generation::Ampere;
  double launch_us = 20;      ///< start and end of a collective, whatever its algorithm
  double latency_factor = 1;  ///< multiplies the latencies of NCCL's tuning model
  std::string provenance;
  friend bool operator==(const NcclSpec&, const NcclSpec&) = default;
};

/// Parameters of the compute and collective cost curves (formulas: sim/kernel_cost.h,
/// sim/collective_cost.h). Defaults are the priors of facts/step_time_model; a device's YAML holds
/// the fitted values. All are plain ratios, elements, microseconds or positions on a curve.
struct CostConstants {
  double gemm_16 = 0.78;           ///< asymptotic fraction of the dense 16-bit peak
  double gemm_8 = 0.79;            ///< of the fp8 peak
  double gemm_32 = 0.80;           ///< of the fp32 peak
  double gemm_k0 = 150;            ///< elements of k lost per GEMM (doubled for fp8)
  double wave_weight = 0.5;        ///< share of the last, partial wave that is paid
  double memory = 0.83;            ///< fraction of device memory bandwidth
  double attention_forward = 0.5;  ///< flash attention, fraction of the 16-bit peak, long sequences
  double attention_backward = 0.7;    ///< backward rate relative to forward
  double attention_s0 = 800;          ///< sequence at which attention reaches half of that
  double launch_us = 4;               ///< per kernel on the device
  double nvlink = 0.77;               ///< fraction of NVLink bandwidth that a ring reaches
  double nic = 0.80;                  ///< fraction of NIC line rate that a ring reaches
  double collective_base_us = 14;     ///< per collective
  double collective_step_us = 5;      ///< per ring step inside a node
  double network_step_us = 14;        ///< per ring step between nodes (NCCL Simple: 14)
  double overlap_slowdown = 1.1;      ///< compute beside a collective
  double overlap_inefficiency = 0.1;  ///< share of a hidden collective that is exposed anyway
  double optimizer_base_us = 4000;    ///< fixed part of an optimizer step
  double node_spread = 0;             ///< relative standard deviation of the nodes' speeds

  friend bool operator==(const CostConstants&, const CostConstants&) = default;
};

/// Name table over the members, for YAML, the fitter and the docs.
struct ConstantName {
  std::string_view name;
  double CostConstants::*member;
};
extern const std::array<ConstantName, 19> kConstantNames;

struct DeviceSpec {
  std::string name;  ///< "a100_80"
  DeviceKind kind = DeviceKind::Gpu;
  FlopRate peak_16, peak_8, peak_32;  ///< dense; fp8 zero where the device has none
  Bytes memory;
  Bandwidth memory_bandwidth;
  Bandwidth nvlink;         ///< one direction, all links together; zero if none
  int multiprocessors = 0;  ///< SMs
  NcclSpec nccl;
  CostConstants constants;
  std::string provenance;  ///< where the constants come from

  /// Dense peak in `dtype`; zero where the device has none.
  FlopRate peak(DType dtype) const;

  friend bool operator==(const DeviceSpec&, const DeviceSpec&) = default;
};

/// Time of a kernel on the slowest of `nodes` nodes over that on a mean one: 1 + node_spread times
/// the expected largest of so many standard normal numbers (Blom's formula). All nodes of a job
/// wait for it in every step (docs/decisions/0010).
double slowest_pace(const CostConstants& constants, int nodes);

/// docs/reference/device.md. Constants that are not stated keep their defaults. Throws
/// Error{InvalidInput}.
DeviceSpec read_device(const Yaml& node);
Document to_document(const DeviceSpec& device);

}  // namespace foresail::topologies

namespace foresail {
template <>
inline constexpr auto kNames<topologies::DeviceKind> = std::to_array<Named<topologies::DeviceKind>>(
    {{topologies::DeviceKind::Gpu, "gpu"}, {topologies::DeviceKind::Cpu, "cpu"}});
template <>
inline constexpr auto kNames<topologies::Generation> = std::to_array<Named<topologies::Generation>>(
    {{topologies::Generation::Volta, "volta"},
     {topologies::Generation::Ampere, "ampere"},
     {topologies::Generation::Hopper, "hopper"},
     {topologies::Generation::Blackwell, "blackwell"}});
}  // namespace foresail
