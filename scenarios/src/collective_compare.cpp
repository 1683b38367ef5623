#include "foresail/scenarios/collective_compare.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>

#include "foresail/base/error.h"

namespace foresail::scenarios {
namespace {

using topologies::Algorithm;
using topologies::Cluster;

constexpr double kCliff = 1.3;
constexpr double kSame = 0.002;  // mean log difference below which two predictions are one
constexpr int kCollisionDraws = 8;
constexpr int kStartUpParts = 64;
constexpr std::size_t kRemarksMax = 10;
constexpr double kAboveLinks = 1.02;  // two digits of a log

struct Change {
  const char* name;
  const char* description;
  std::function<void(Cluster::Options&, SweepOptions&)> apply;
};

void oversubscribe(Cluster::Options& cluster, SweepOptions&) {
  cluster.fabric.leaf_uplinks = std::max(1, cluster.fabric.leaf_uplinks / 2);
}

void halve_channels(const Sweep& base, SweepOptions& options) {
  int most = 1;
  for (const SweepPoint& point : base.points) most = std::max(most, point.channels);
  options.network.nccl.channels = std::max(1, most / 2);
}

std::vector<Change> changes_of(const Sweep& base) {
  const auto nccl = [](auto&& set) {
    return [set](Cluster::Options&, SweepOptions& options) { set(options.network.nccl); };
  };
  return {
      {"slow_rail", "the first NIC of every node at half rate",
       [](Cluster::Options&, SweepOptions& o) { o.impairment.nic_of_rail_0 = 0.5; }},
      {"slow_node", "NVLink and NICs of one node at two thirds of their rate",
       [](Cluster::Options&, SweepOptions& o) { o.impairment.links_of_a_node = 2.0 / 3; }},
      {"missing_nic", "one NIC of every node is not used",
       [](Cluster::Options&, SweepOptions& o) { o.impairment.nics_missing = 1; }},
      {"missing_half_nics", "half of the NICs of every node are not used",
       [](Cluster::Options& c, SweepOptions& o) {
         o.impairment.nics_missing = c.node.devices / 2;
       }},
      {"no_gpudirect", "data bounce through the host's memory instead of GPUDirect",
       nccl([](topologies::NcclOptions& n) { n.gpudirect = false; })},
      {"tree", "tree instead of NCCL's choice (NCCL_ALGO=Tree)",
       nccl([](topologies::NcclOptions& n) { n.algorithm = Algorithm::Tree; })},
      {"ring", "ring instead of NCCL's choice (NCCL_ALGO=Ring)",
       nccl([](topologies::NcclOptions& n) { n.algorithm = Algorithm::Ring; })},
      {"ll_only", "LL at every size (NCCL_PROTO=LL)",
       nccl([](topologies::NcclOptions& n) { n.protocol = topologies::Protocol::Ll; })},
      {"simple_only", "Simple at every size (NCCL_PROTO=Simple)",
       nccl([](topologies::NcclOptions& n) { n.protocol = topologies::Protocol::Simple; })},
      {"no_nvls", "without NVLink SHARP (NCCL_NVLS_ENABLE=0)",
       nccl([](topologies::NcclOptions& n) { n.nvls = false; })},
      {"half_channels", "half of the channels (NCCL_MAX_NCHANNELS)",
       [base](Cluster::Options&, SweepOptions& o) { halve_channels(base, o); }},
      {"one_queue_pair", "one queue pair per connection",
       [](Cluster::Options&, SweepOptions& o) { o.network.qps_per_connection = 1; }},
      {"many_queue_pairs", "eight queue pairs per connection",
       [](Cluster::Options&, SweepOptions& o) { o.network.qps_per_connection = 8; }},
      {"no_collisions", "spread over all paths: no collisions in the fabric",
       [](Cluster::Options&, SweepOptions& o) {
         o.network.routing = topologies::Routing::Spray;
         o.network.sharing = topologies::Sharing::MaxMin;
       }},
      {"oversubscribed", "half of every leaf's uplinks", oversubscribe},
  };
}

std::vector<double> times_of(const Sweep& sweep) {
  std::vector<double> times;
  for (const SweepPoint& point : sweep.points) times.push_back(to_seconds(point.time) * 1e6);
  return times;
}

double error_of(const std::vector<double>& predicted, const std::vector<double>& measured) {
  double sum = 0;
  for (std::size_t i = 0; i < predicted.size(); ++i) {
    sum += std::abs(std::log(predicted[i] / measured[i]));
  }
  return sum / static_cast<double>(predicted.size());
}

// What the change predicts; empty if the cluster does not allow it (a tree of all_gather).
std::vector<double> predict(const Change& change, const Cluster& cluster, SweepOptions options) {
  Cluster::Options changed = cluster.options();
  change.apply(changed, options);
  try {
    if (changed == cluster.options()) return times_of(sweep(cluster, options));
    return times_of(sweep(Cluster(changed), options));
  } catch (const Error&) {
    return {};
  }
}

void add_collisions(const Cluster& cluster, const SweepOptions& options,
                    const std::vector<double>& measured, std::vector<Hypothesis>& found) {
  Hypothesis best;
  for (int draw = 0; draw < kCollisionDraws; ++draw) {
    SweepOptions drawn = options;
    drawn.network.routing = topologies::Routing::Ecmp;
    drawn.network.hash_seeds = topologies::HashSeeds::One;
    drawn.seed = options.seed + static_cast<std::uint64_t>(draw);
    const std::vector<double> times = times_of(sweep(cluster, drawn));
    const double error = error_of(times, measured);
    if (!best.time_us.empty() && error >= best.error) continue;
    best.time_us = times;
    best.error = error;
  }
  best.name = "collisions";
  best.description =
      fmt::format("ECMP with one hash seed in all switches, best of {} draws", kCollisionDraws);
  found.push_back(std::move(best));
}

// A constant beyond the prediction at every size: the one with the least error. Between two sizes'
// own differences the error is smooth, so each such interval is searched.
Hypothesis slow_start_up(const std::vector<double>& base, const std::vector<double>& measured) {
  Hypothesis found;
  found.name = "slow_startup";
  const auto with = [&](double constant) {
    std::vector<double> times = base;
    for (double& time : times) time += constant;
    return times;
  };
  std::vector<double> knots = {0};
  for (std::size_t i = 0; i < base.size(); ++i) knots.push_back(measured[i] - base[i]);
  std::erase_if(knots, [](double knot) { return knot < 0; });
  std::ranges::sort(knots);
  double best = 0;
  found.error = error_of(base, measured);
  for (std::size_t k = 0; k < knots.size(); ++k) {
    const double next = k + 1 < knots.size() ? knots[k + 1] : knots[k];
    for (int part = 0; part < kStartUpParts; ++part) {
      const double constant = knots[k] + (next - knots[k]) * part / kStartUpParts;
      const double error = error_of(with(constant), measured);
      if (error >= found.error) continue;
      found.error = error;
      best = constant;
    }
  }
  found.time_us = with(best);
  found.description = fmt::format("slow start-up: +{:.1f} us on every size", best);
  return found;
}

// Up to kRemarksMax of one kind, then how many more.
void add_remarks(const std::vector<LogRemark>& found, const char* form,
                 std::vector<std::string>& remarks) {
  for (std::size_t i = 0; i < std::min(found.size(), kRemarksMax); ++i) {
    remarks.push_back(fmt::format(fmt::runtime(form), found[i].line, found[i].text));
  }
  if (found.size() > kRemarksMax) {
    remarks.push_back(fmt::format("... and {} lines more like that", found.size() - kRemarksMax));
  }
}

std::vector<std::string> remarks_of(const CollectiveLog& log, const Cluster& cluster,
                                    Operation operation) {
  std::vector<std::string> remarks;
  add_remarks(log.skipped, "skipped line {}: {}", remarks);
  add_remarks(log.corruption, "the log reports wrong results: data corruption (line {}: {})",
              remarks);
  if (log.operation && *log.operation != operation) {
    remarks.push_back(fmt::format("the log is of {}, the prediction of {} (--op)",
                                  to_string(*log.operation), to_string(operation)));
  }
  const double most = bus_bandwidth_max(cluster, operation);
  double highest = 0;
  Bytes size;
  for (const LogRow& row : log.rows) {
    const double bus = static_cast<double>(row.size.count()) / (1000 * row.time_us) *
                       bus_factor(operation, cluster.device_count());
    if (bus > highest) size = row.size;
    highest = std::max(highest, bus);
  }
  if (most > 0 && highest > kAboveLinks * most) {
    remarks.push_back(
        fmt::format("bus bandwidth at {} bytes, {:.1f} GB/s, is above what any link of the cluster "
                    "allows ({:.1f} GB/s): another cluster, another operation, or a damaged log",
                    size.count(), highest, most));
  }
  return remarks;
}

// Where links take less than a third of the predicted time, latency rules; from two thirds on,
// bandwidth.
std::vector<Difference> differences_of(const Sweep& predicted,
                                       const std::vector<double>& measured) {
  std::vector<Difference> parts = {{"latency", 0, 0}, {"middle", 0, 0}, {"bandwidth", 0, 0}};
  for (std::size_t i = 0; i < measured.size(); ++i) {
    const SweepPoint& point = predicted.points[i];
    const double time = to_seconds(point.time);
    const double links = 1 - to_seconds(point.latency) / time;
    const std::size_t part = links < 1.0 / 3 ? 0 : links < 2.0 / 3 ? 1 : 2;
    ++parts[part].sizes;
    parts[part].ratio += std::log(measured[i] / (time * 1e6));
  }
  for (Difference& part : parts) {
    part.ratio = part.sizes == 0 ? 1 : std::exp(part.ratio / static_cast<double>(part.sizes));
  }
  return parts;
}

void find_cliff(const std::vector<double>& measured, Comparison& comparison) {
  const std::vector<double> predicted = times_of(comparison.predicted);
  for (std::size_t i = 1; i < measured.size(); ++i) {
    const double before = measured[i - 1] / predicted[i - 1];
    const double after = measured[i] / predicted[i];
    const double step = std::max(after / before, before / after);
    if (step < kCliff || step <= comparison.cliff_ratio) continue;
    const bool stays =
        i + 1 == measured.size() ||
        std::abs(std::log(measured[i + 1] / predicted[i + 1] / before)) > 0.5 * std::log(step);
    if (!stays) continue;
    comparison.cliff = comparison.predicted.points[i].size;
    comparison.cliff_ratio = step;
  }
}

}  // namespace

double bus_bandwidth_max(const Cluster& cluster, Operation operation) {
  const bool is_all_reduce = operation == Operation::AllReduce;
  const topologies::NodeSpec& node = cluster.node();
  const double nodes = cluster.options().nodes;
  if (nodes < 2) {
    return (is_all_reduce ? 2 : 1) * cluster.device().nvlink.bytes_per_second() / 1e9;
  }
  const double nic = node.nic_bandwidth.bytes_per_second() / 1e9;
  switch (operation) {
    case Operation::AllReduce:
      return 2 * node.nics * nic;
    case Operation::Broadcast:
      return node.nics * nic;
    case Operation::SendRecv:
      return nic * std::max(1.0, static_cast<double>(node.nics) / node.devices);
    case Operation::AllGather:
    case Operation::ReduceScatter:
    case Operation::AllToAll:
      break;
  }
  return nodes / (nodes - 1) * node.nics * nic;
}

bool Comparison::is_as_expected() const {
  return error <= kFits;
}

bool Comparison::has_explanation() const {
  return !hypotheses.empty() && hypotheses.front().is_effective &&
         hypotheses.front().error <= kFits && hypotheses.front().error < error * 2 / 3;
}

Comparison compare_log(const CollectiveLog& log, const Cluster& cluster,
                       const SweepOptions& options) {
  if (log.ranks > 0 && log.ranks != cluster.device_count()) {
    throw Error(ErrorCode::InvalidInput,
                fmt::format("{}: {} ranks, but the cluster has {} GPUs (--gpus)", log.file,
                            log.ranks, cluster.device_count()));
  }
  Comparison comparison;
  comparison.log = log;
  SweepOptions at = options;
  at.sizes.clear();
  std::vector<double> measured;
  for (const LogRow& row : log.rows) {
    at.sizes.push_back(row.size);
    measured.push_back(row.time_us);
  }
  comparison.predicted = sweep(cluster, at);
  const std::vector<double> base = times_of(comparison.predicted);
  comparison.error = error_of(base, measured);
  comparison.differences = differences_of(comparison.predicted, measured);
  find_cliff(measured, comparison);
  comparison.remarks = remarks_of(log, cluster, options.operation);
  for (const Change& change : changes_of(comparison.predicted)) {
    Hypothesis hypothesis;
    hypothesis.time_us = predict(change, cluster, at);
    if (hypothesis.time_us.empty()) continue;
    hypothesis.name = change.name;
    hypothesis.description = change.description;
    hypothesis.error = error_of(hypothesis.time_us, measured);
    comparison.hypotheses.push_back(std::move(hypothesis));
  }
  if (cluster.options().nodes > 1) add_collisions(cluster, at, measured, comparison.hypotheses);
  comparison.hypotheses.push_back(slow_start_up(base, measured));
  for (Hypothesis& hypothesis : comparison.hypotheses) {
    hypothesis.is_effective = error_of(hypothesis.time_us, base) > kSame;
  }
  std::ranges::stable_sort(comparison.hypotheses, [](const Hypothesis& a, const Hypothesis& b) {
    if (a.is_effective != b.is_effective) return a.is_effective;
    return a.error < b.error;
  });
  return comparison;
}

namespace {

std::string rows_text(const Comparison& comparison) {
  std::string text =
      fmt::format("{:>12}  {:>12} {:>12} {:>8}  {:>8} {:>8}  {}\n", "size (B)", "measured us",
                  "predicted us", "ratio", "busbw", "predicted", "bound by");
  for (std::size_t i = 0; i < comparison.log.rows.size(); ++i) {
    const LogRow& row = comparison.log.rows[i];
    const SweepPoint& point = comparison.predicted.points[i];
    const double predicted = to_seconds(point.time) * 1e6;
    text += fmt::format("{:>12}  {:>12.1f} {:>12.1f} {:>8.2f}  {:>8.2f} {:>8.2f}  {}\n",
                        row.size.count(), row.time_us, predicted, row.time_us / predicted,
                        row.bus_bandwidth, point.bus_bandwidth, point.bound);
  }
  return text;
}

// "12.3 %", or from 100 % on "x 3.4".
std::string off_text(double error) {
  return error < 1 ? fmt::format("{:.1f} %", 100 * error)
                   : fmt::format("x {:.3g}", std::exp(error));
}

std::string verdict_of(const Comparison& comparison) {
  if (comparison.has_explanation()) {
    const Hypothesis& best = comparison.hypotheses.front();
    std::string text = fmt::format("fits best: {} ({} off; as described {})\n", best.description,
                                   off_text(best.error), off_text(comparison.error));
    for (std::size_t i = 1; i < comparison.hypotheses.size(); ++i) {
      const Hypothesis& other = comparison.hypotheses[i];
      if (!other.is_effective || error_of(other.time_us, best.time_us) > kSame) continue;
      text += fmt::format("not to be told from it: {}\n", other.description);
    }
    return text;
  }
  if (comparison.is_as_expected()) {
    return fmt::format("as expected of this cluster ({} off)\n", off_text(comparison.error));
  }
  return fmt::format(
      "nothing fits: as described {} off, and no single change comes within {:.0f} %\n",
      off_text(comparison.error), 100 * kFits);
}

}  // namespace

std::string to_text(const Comparison& comparison) {
  std::string text;
  for (const std::string& remark : comparison.remarks) text += remark + "\n";
  if (!text.empty()) text += "\n";
  text += rows_text(comparison) + "\nmeasured over predicted time\n";
  for (const Difference& part : comparison.differences) {
    if (part.sizes == 0) continue;
    text += fmt::format("  {:<10} {:>5.2f}  ({} sizes)\n", part.part, part.ratio, part.sizes);
  }
  if (comparison.cliff.count() > 0) {
    text +=
        fmt::format("  a cliff at {} bytes: off by a factor of {:.2f} more than the row before\n",
                    comparison.cliff.count(), comparison.cliff_ratio);
  }
  text += "\nmean error of each change, simulated on the same cluster\n";
  text += fmt::format("  {:>8}  {}\n", off_text(comparison.error), "as_described");
  for (const Hypothesis& hypothesis : comparison.hypotheses) {
    text += fmt::format("  {:>8}  {:<18} {}{}\n", off_text(hypothesis.error), hypothesis.name,
                        hypothesis.description,
                        hypothesis.is_effective ? "" : " (changes nothing here)");
  }
  return text + "\n" + verdict_of(comparison);
}

Document to_document(const Comparison& comparison) {
  Document hypotheses = Document::array();
  for (const Hypothesis& hypothesis : comparison.hypotheses) {
    hypotheses.push_back({{"name", hypothesis.name},
                          {"description", hypothesis.description},
                          {"error", hypothesis.error},
                          {"effective", hypothesis.is_effective},
                          {"time_us", hypothesis.time_us}});
  }
  Document differences = Document::array();
  for (const Difference& part : comparison.differences) {
    differences.push_back({{"part", part.part}, {"sizes", part.sizes}, {"ratio", part.ratio}});
  }
  Document rows = Document::array();
  for (const LogRow& row : comparison.log.rows) {
    rows.push_back(
        {{"size", row.size.count()}, {"time_us", row.time_us}, {"busbw", row.bus_bandwidth}});
  }
  Document skipped = Document::array();
  for (const LogRemark& line : comparison.log.skipped) {
    skipped.push_back({{"line", line.line}, {"reason", line.text}});
  }
  Document remarks = Document::array();
  for (const std::string& remark : comparison.remarks) remarks.push_back(remark);
  Document document = {
      {"log", comparison.log.file}, {"skipped", skipped},
      {"remarks", remarks},         {"has_wrong_results", !comparison.log.corruption.empty()},
      {"measured", rows},           {"predicted", to_document(comparison.predicted)},
      {"error", comparison.error},  {"differences", differences},
      {"hypotheses", hypotheses},   {"as_expected", comparison.is_as_expected()},
      {"explained_by", Document()}};
  if (comparison.cliff.count() > 0) {
    document["cliff"] = {{"size", comparison.cliff.count()}, {"ratio", comparison.cliff_ratio}};
  }
  if (comparison.has_explanation()) {
    document["explained_by"] = comparison.hypotheses.front().name;
  }
  return document;
}

}  // namespace foresail::scenarios
