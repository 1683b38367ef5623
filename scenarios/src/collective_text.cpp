// A sweep as nccl-tests prints one.
#include <fmt/format.h>

#include <algorithm>

#include "foresail/scenarios/collective_sweep.h"

namespace foresail::scenarios {
namespace {

constexpr std::int64_t kElementBytes = 4;  // float

const char* reduction_of(Operation operation) {
  const bool reduces = operation == Operation::AllReduce || operation == Operation::ReduceScatter;
  return reduces ? "sum" : "none";
}

// Four significant digits in seven columns, as nccl-tests prints times.
std::string time_text(double microseconds) {
  if (microseconds >= 10000) return fmt::format("{:7.0f}", microseconds);
  if (microseconds >= 100) return fmt::format("{:7.1f}", microseconds);
  return fmt::format("{:7.2f}", microseconds);
}

std::string row_text(const Sweep& sweep, const SweepPoint& point) {
  const std::string measured =
      fmt::format("{}  {:5.2f}  {:5.2f}      0", time_text(to_seconds(point.time) * 1e6),
                  point.algorithm_bandwidth, point.bus_bandwidth);
  return fmt::format("{:>12}  {:>12}  {:>8}  {:>6}  {:>6}  {}  {}\n", point.size.count(),
                     element_count(sweep.operation, point.size, sweep.ranks), "float",
                     reduction_of(sweep.operation), -1, measured, measured);
}

}  // namespace

std::int64_t element_count(Operation operation, Bytes size, int ranks) {
  const bool is_shared = operation == Operation::AllGather ||
                         operation == Operation::ReduceScatter || operation == Operation::AllToAll;
  return size.count() / kElementBytes / (is_shared ? ranks : 1);
}

std::string to_text(const Sweep& sweep) {
  std::string text = fmt::format(
      "# Collective test starting: {}_perf\n"
      "# nThread 1 nGpus 1 ranks {} nodes {} cluster {} (simulated{})\n#\n"
      "# in-place and out-of-place take the same time here; nothing is computed, so nothing is "
      "wrong\n#\n"
      "#{:>51}{:>32}\n"
      "#{:>11}  {:>12}  {:>8}  {:>6}  {:>6}  {:>7} {:>6} {:>6} {:>6}  {:>7} {:>6} {:>6} {:>6}\n"
      "#{:>11}  {:>12}  {:>8}  {:>6}  {:>6}  {:>7} {:>6} {:>6} {:>6}  {:>7} {:>6} {:>6} {:>6}\n",
      to_string(sweep.operation), sweep.ranks, sweep.nodes, sweep.cluster,
      sweep.groups > 1 ? fmt::format(", {} groups at once", sweep.groups) : "", "out-of-place",
      "in-place", "size", "count", "type", "redop", "root", "time", "algbw", "busbw", "#wrong",
      "time", "algbw", "busbw", "#wrong", "(B)", "(elements)", "", "", "", "(us)", "(GB/s)",
      "(GB/s)", "", "(us)", "(GB/s)", "(GB/s)", "");
  for (const SweepPoint& point : sweep.points) text += row_text(sweep, point);
  text += fmt::format("# Out of bounds values : 0 OK\n# Avg bus bandwidth    : {:.4f}\n#\n",
                      sweep.average_bus_bandwidth());
  text += fmt::format("# {:>11}  {:<12} {:<8} {:>8}  {:>10}  {}\n", "size", "algorithm", "protocol",
                      "channels", "latency us", "bound by");
  for (const SweepPoint& point : sweep.points) {
    std::string spread;
    if (sweep.seeds > 1) {
      spread =
          fmt::format("  ({:.1f} to {:.1f} us over {} seeds)", to_seconds(point.time_min) * 1e6,
                      to_seconds(point.time_max) * 1e6, sweep.seeds);
    }
    text += fmt::format("# {:>11}  {:<12} {:<8} {:>8}  {:>10.1f}  {}{}\n", point.size.count(),
                        to_string(point.algorithm), to_string(point.protocol), point.channels,
                        to_seconds(point.latency) * 1e6, point.bound, spread);
  }
  return text;
}

Document to_document(const Sweep& sweep) {
  Document rows = Document::array();
  for (const SweepPoint& point : sweep.points) {
    rows.push_back({{"size", point.size.count()},
                    {"count", element_count(sweep.operation, point.size, sweep.ranks)},
                    {"type", "float"},
                    {"redop", reduction_of(sweep.operation)},
                    {"time_us", to_seconds(point.time) * 1e6},
                    {"time_min_us", to_seconds(point.time_min) * 1e6},
                    {"time_max_us", to_seconds(point.time_max) * 1e6},
                    {"algbw", point.algorithm_bandwidth},
                    {"busbw", point.bus_bandwidth},
                    {"algorithm", std::string(to_string(point.algorithm))},
                    {"protocol", std::string(to_string(point.protocol))},
                    {"channels", point.channels},
                    {"latency_us", to_seconds(point.latency) * 1e6},
                    {"copies_us", to_seconds(point.copies) * 1e6},
                    {"bound", point.bound},
                    {"nic_bytes_max", point.nic_bytes_max},
                    {"balance",
                     {{"uplinks", point.balance.uplinks},
                      {"uplinks_worst", point.balance.uplinks_worst},
                      {"uplinks_least", point.balance.uplinks_least},
                      {"ports_in", point.balance.ports_in},
                      {"ports_in_worst", point.balance.ports_in_worst}}}});
  }
  return {{"operation", std::string(to_string(sweep.operation))},
          {"cluster", sweep.cluster},
          {"ranks", sweep.ranks},
          {"nodes", sweep.nodes},
          {"groups", sweep.groups},
          {"seeds", sweep.seeds},
          {"average_busbw", sweep.average_bus_bandwidth()},
          {"rows", rows}};
}

}  // namespace foresail::scenarios
