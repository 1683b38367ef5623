#include "foresail/report/memory_curve.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <tuple>

#include "foresail/base/error.h"

namespace foresail::report {
namespace {

using program::LiveTensor;
using program::MemoryCategory;
using program::Moment;
using program::OpId;

Bytes of_category(const std::vector<LiveTensor>& tensors, MemoryCategory category) {
  Bytes sum;
  for (const LiveTensor& tensor : tensors) {
    if (tensor.category == category) sum += tensor.bytes;
  }
  return sum;
}

/// A group that comes or goes.
struct Event {
  SimTime time{};
  int sign = 1;
  std::size_t group = 0;
};

SimTime time_of(const Moment& moment, const std::vector<OpInterval>& times) {
  const OpInterval& op = times.at(moment.op.value);
  return moment.edge == Moment::Edge::Start ? op.start : op.end;
}

std::vector<Event> events_of(const program::StageMemory& memory,
                             const std::vector<OpInterval>& times) {
  std::vector<Event> events;
  for (const program::Life& life : memory.lives) {
    const SimTime born = time_of(life.born, times);
    const SimTime dies = time_of(life.dies, times);
    if (dies <= born) continue;  // handed over at once
    events.push_back({born, 1, life.group});
    events.push_back({dies, -1, life.group});
  }
  std::ranges::sort(events, {}, [](const Event& event) {
    return std::tuple(event.time, event.sign, event.group);
  });
  return events;
}

/// The pass under way at `time`, or the last one before it.
OpId pass_at(const program::StageProgram& stage, const std::vector<OpInterval>& times,
             SimTime time) {
  OpId found{};
  for (std::uint32_t i = 0; i < stage.ops.size(); ++i) {
    if (stage.ops[OpId{i}].kind != program::OpKind::Compute) continue;
    if (times[i].start <= time) found = OpId{i};
  }
  return found;
}

std::vector<OwnedBytes> owners_of(const program::StageMemory& memory,
                                  const std::vector<int>& counts) {
  std::map<std::tuple<MemoryCategory, std::string, std::string, Bytes>, OwnedBytes> owned;
  const auto add = [&](const LiveTensor& tensor, int count) {
    const auto [place, is_new] = owned.try_emplace(
        {tensor.category, tensor.owner, tensor.name, tensor.bytes}, OwnedBytes{tensor, count});
    if (!is_new) place->second.count += count;
  };
  for (const LiveTensor& tensor : memory.resident) add(tensor, 1);
  for (std::size_t group = 0; group < counts.size(); ++group) {
    if (counts[group] == 0) continue;
    for (const LiveTensor& tensor : memory.groups[group].tensors) add(tensor, counts[group]);
  }
  std::vector<OwnedBytes> owners;
  owners.reserve(owned.size());
  for (auto& [key, each] : owned) owners.push_back(std::move(each));
  std::ranges::stable_sort(
      owners, [](const OwnedBytes& a, const OwnedBytes& b) { return a.bytes() > b.bytes(); });
  return owners;
}

/// Sums of the groups, which many lives share.
struct GroupBytes {
  Bytes total, activations, buffers;
};

}  // namespace

MemoryCurve memory_curve(const program::StageProgram& stage, const program::StageMemory& memory,
                         const std::vector<OpInterval>& times) {
  FORESAIL_EXPECT(times.size() == stage.ops.size());
  std::vector<GroupBytes> groups;
  for (const program::TensorGroup& group : memory.groups) {
    groups.push_back({group.bytes(), of_category(group.tensors, MemoryCategory::Activations),
                      of_category(group.tensors, MemoryCategory::Buffers)});
  }
  MemoryPoint now;
  for (const LiveTensor& tensor : memory.resident) now.total += tensor.bytes;
  now.buffers = of_category(memory.resident, MemoryCategory::Buffers);
  MemoryCurve curve;
  curve.points.push_back(now);
  std::vector<int> counts(groups.size(), 0);
  std::vector<int> at_peak = counts;
  const std::vector<Event> events = events_of(memory, times);
  for (std::size_t i = 0; i < events.size(); ++i) {
    const Event& event = events[i];
    counts[event.group] += event.sign;
    now.total += event.sign * groups[event.group].total;
    now.activations += event.sign * groups[event.group].activations;
    now.buffers += event.sign * groups[event.group].buffers;
    if (i + 1 < events.size() && events[i + 1].time == event.time) continue;
    now.time = event.time;
    if (curve.points.back().time == now.time) {
      curve.points.back() = now;
    } else {
      curve.points.push_back(now);
    }
    if (now.total <= curve.points[curve.peak].total && curve.peak + 1 != curve.points.size()) {
      continue;
    }
    curve.peak = curve.points.size() - 1;
    at_peak = counts;
  }
  curve.op = pass_at(stage, times, curve.points[curve.peak].time);
  curve.owners = owners_of(memory, at_peak);
  return curve;
}

std::vector<OpInterval> program_order(const program::StageProgram& stage) {
  std::vector<OpInterval> times;
  for (std::size_t i = 0; i < stage.ops.size(); ++i) {
    const auto tick = static_cast<std::int64_t>(2 * i);
    times.push_back({SimTime(Duration(tick)), SimTime(Duration(tick + 1))});
  }
  return times;
}

std::string to_csv(const MemoryCurve& curve) {
  std::string text = "time_s,total_bytes,activation_bytes,buffer_bytes\n";
  for (const MemoryPoint& point : curve.points) {
    text += fmt::format("{:.12g},{},{},{}\n", to_seconds(point.time - SimTime{}),
                        point.total.count(), point.activations.count(), point.buffers.count());
  }
  return text;
}

}  // namespace foresail::report
