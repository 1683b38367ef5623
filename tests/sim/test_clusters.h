/// \file
/// Clusters that the simulator's tests share.
#pragma once

#include <vector>

#include "foresail/topologies/cluster.h"

namespace foresail::sim::test {

/// Nodes of 8 GPUs and 8 NICs of 200 Gb/s; groups of 4 nodes on 8 rails; two tiers, 1:1.
inline topologies::Cluster::Options small_clos(int nodes) {
  topologies::Cluster::Options options;
  options.name = "small_clos";
  options.device.name = "test_gpu";
  options.device.peak_16 = FlopRate::teraflops(312);
  options.device.peak_32 = FlopRate::teraflops(19.5);
  options.device.memory = 80_GiB;
  options.device.memory_bandwidth = Bandwidth::gigabytes_per_second(2039);
  options.device.nvlink = Bandwidth::gigabytes_per_second(300);
  options.device.multiprocessors = 108;
  options.node.devices = 8;
  options.node.nics = 8;
  options.node.nic_bandwidth = 200_Gbps;
  options.fabric.tiers = 2;
  options.fabric.rails = 8;
  options.fabric.nodes_per_leaf = 4;
  options.fabric.leaf_uplinks = 4;
  options.fabric.uplink_bandwidth = 200_Gbps;
  options.fabric.link_latency = std::chrono::microseconds(1);
  options.nodes = nodes;
  return options;
}

inline std::vector<DeviceId> first_devices(int count) {
  std::vector<DeviceId> devices;
  for (int d = 0; d < count; ++d) devices.push_back(DeviceId{static_cast<std::uint32_t>(d)});
  return devices;
}

}  // namespace foresail::sim::test
