#include "foresail/topologies/device.h"

#include <boost/math/distributions/normal.hpp>
#include <utility>

#include "exact_text.h"
#include "foresail/base/yaml_name.h"

namespace foresail::topologies {

const std::array<ConstantName, 19> kConstantNames = {{
    {"gemm_16", &CostConstants::gemm_16},
    {"gemm_8", &CostConstants::gemm_8},
    {"gemm_32", &CostConstants::gemm_32},
    {"gemm_k0", &CostConstants::gemm_k0},
    {"wave_weight", &CostConstants::wave_weight},
    {"memory", &CostConstants::memory},
    {"attention_forward", &CostConstants::attention_forward},
    {"attention_backward", &CostConstants::attention_backward},
    {"attention_s0", &CostConstants::attention_s0},
    {"launch_us", &CostConstants::launch_us},
    {"nvlink", &CostConstants::nvlink},
    {"nic", &CostConstants::nic},
    {"collective_base_us", &CostConstants::collective_base_us},
    {"collective_step_us", &CostConstants::collective_step_us},
    {"network_step_us", &CostConstants::network_step_us},
    {"overlap_slowdown", &CostConstants::overlap_slowdown},
    {"overlap_inefficiency", &CostConstants::overlap_inefficiency},
    {"optimizer_base_us", &CostConstants::optimizer_base_us},
    {"node_spread", &CostConstants::node_spread},
}};

namespace {

constexpr double kConstantMax = 1e9;
constexpr Bytes kMemoryMax{std::int64_t{1} << 50};
constexpr Bandwidth kBandwidthMax = Bandwidth::gbps(1'000'000);
constexpr FlopRate kPeakMax = FlopRate::teraflops(1e6);

template <class Quantity>
Quantity in_range(const Yaml& node, Quantity value, Quantity low, Quantity high) {
  if (value < low) node.fail("must be positive");
  if (value > high) node.fail("is beyond any device");
  return value;
}

FlopRate read_peak(const Yaml& node) {
  return in_range(node, node.as_flop_rate(), FlopRate::per_second(1), kPeakMax);
}

Bandwidth read_bandwidth(const Yaml& node) {
  return in_range(node, node.as_bandwidth(), Bandwidth::bps(1), kBandwidthMax);
}

CostConstants read_constants(const Yaml& node) {
  CostConstants constants;
  [&]<std::size_t... i>(std::index_sequence<i...>) {
    node.allow_only({kConstantNames[i].name...});
  }
  (std::make_index_sequence<kConstantNames.size()>{});
  for (const ConstantName& constant : kConstantNames) {
    const std::optional<Yaml> value = node.find(constant.name);
    if (!value) continue;
    const double number = value->as_number();
    if (number < 0 || number > kConstantMax) value->fail("must lie between 0 and 1e9");
    constants.*constant.member = number;
  }
  for (const std::string_view divisor :
       {"gemm_16", "gemm_8", "gemm_32", "memory", "attention_forward", "attention_backward",
        "nvlink", "nic"}) {
    const std::optional<Yaml> value = node.find(divisor);
    if (value && value->as_number() <= 0) value->fail("must be positive");
  }
  for (const std::string_view fraction :
       {"gemm_16", "gemm_8", "gemm_32", "memory", "attention_forward", "nvlink", "nic",
        "wave_weight", "node_spread"}) {
    const std::optional<Yaml> value = node.find(fraction);
    if (value && value->as_number() > 1) value->fail("is a fraction: at most 1");
  }
  return constants;
}

NcclSpec read_nccl(const Yaml& node) {
  node.allow_only({"generation", "launch_us", "latency_factor", "provenance"});
  NcclSpec nccl;
  nccl.generation = node.at("generation").as_choice<Generation>();
  if (const auto launch = node.find("launch_us")) {
    nccl.launch_us = launch->as_number();
    if (nccl.launch_us < 0 || nccl.launch_us > 1e6) launch->fail("must lie between 0 and 1e6");
  }
  if (const auto factor = node.find("latency_factor")) {
    nccl.latency_factor = factor->as_number();
    if (nccl.latency_factor <= 0 || nccl.latency_factor > 100) {
      factor->fail("must be positive and at most 100");
    }
  }
  if (const auto text = node.find("provenance")) nccl.provenance = text->as_string();
  return nccl;
}

Document nccl_document(const NcclSpec& nccl) {
  Document document = {{"generation", std::string(to_string(nccl.generation))},
                       {"launch_us", nccl.launch_us},
                       {"latency_factor", nccl.latency_factor}};
  if (!nccl.provenance.empty()) document["provenance"] = nccl.provenance;
  return document;
}

}  // namespace

FlopRate DeviceSpec::peak(DType dtype) const {
  switch (dtype) {
    case DType::Fp32:
      return peak_32;
    case DType::Bf16:
    case DType::Fp16:
      return peak_16;
    case DType::Fp8:
      return peak_8;
    case DType::Int64:
      return FlopRate();
  }
  return FlopRate();
}

double slowest_pace(const CostConstants& constants, int nodes) {
  if (nodes < 2 || constants.node_spread == 0) return 1;
  // Blom (1958): the expected largest of n stands at the quantile (n - 3/8) / (n + 1/4).
  const double share = (nodes - 0.375) / (nodes + 0.25);
  return 1 + constants.node_spread * boost::math::quantile(boost::math::normal(), share);
}

DeviceSpec read_device(const Yaml& node) {
  node.allow_only({"name", "kind", "peak_16", "peak_8", "peak_32", "memory", "memory_bandwidth",
                   "nvlink", "multiprocessors", "nccl", "constants", "provenance"});
  DeviceSpec device;
  device.name = read_name(node.at("name"));
  if (const auto kind = node.find("kind")) device.kind = kind->as_choice<DeviceKind>();
  device.peak_16 = read_peak(node.at("peak_16"));
  device.peak_32 = read_peak(node.at("peak_32"));
  if (const auto peak = node.find("peak_8")) device.peak_8 = read_peak(*peak);
  const Yaml memory = node.at("memory");
  device.memory = in_range(memory, memory.as_bytes(), Bytes(1), kMemoryMax);
  device.memory_bandwidth = read_bandwidth(node.at("memory_bandwidth"));
  if (const auto nvlink = node.find("nvlink")) device.nvlink = read_bandwidth(*nvlink);
  device.multiprocessors = static_cast<int>(node.at("multiprocessors").as_integer(1, 100'000));
  if (const auto nccl = node.find("nccl")) device.nccl = read_nccl(*nccl);
  if (const auto constants = node.find("constants")) device.constants = read_constants(*constants);
  if (const auto text = node.find("provenance")) device.provenance = text->as_string();
  return device;
}

Document to_document(const DeviceSpec& device) {
  Document constants = Document::object();
  for (const ConstantName& constant : kConstantNames) {
    constants[std::string(constant.name)] = device.constants.*constant.member;
  }
  Document document = {{"name", device.name},
                       {"kind", std::string(to_string(device.kind))},
                       {"peak_16", exact_text(device.peak_16)},
                       {"peak_32", exact_text(device.peak_32)},
                       {"memory", exact_text(device.memory)},
                       {"memory_bandwidth", exact_text(device.memory_bandwidth)},
                       {"multiprocessors", device.multiprocessors},
                       {"nccl", nccl_document(device.nccl)},
                       {"constants", constants},
                       {"provenance", device.provenance}};
  if (device.peak_8 > FlopRate()) document["peak_8"] = exact_text(device.peak_8);
  if (device.nvlink > Bandwidth()) document["nvlink"] = exact_text(device.nvlink);
  return document;
}

}  // namespace foresail::topologies
