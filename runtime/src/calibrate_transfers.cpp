#include <algorithm>
#include <set>
#include <tuple>

#include "calibration.h"
#include "foresail/base/error.h"
#include "foresail/runtime/communicator.h"
#include "host_copy.h"
#include "span_log.h"

namespace foresail::runtime {
namespace {

/// One thing to measure, ordered so that every process goes through the same list.
struct Case {
  std::string kind;
  int ranks = 2;
  std::int64_t bytes = 0;
  friend auto operator<=>(const Case&, const Case&) = default;
};

constexpr std::int64_t kSweep[] = {8,         1 << 10, 4 << 10, 16 << 10, 64 << 10,
                                   256 << 10, 1 << 20, 4 << 20, 16 << 20};
/// GEMMs of 384^3 between two samples: a few milliseconds, like a part of a layer.
constexpr int kComputeBetween = 3;
constexpr const char* kKinds[] = {"all_gather", "all_reduce", "reduce_scatter", "send"};

/// Sizes and kinds that a job uses.
void add_cases(const program::Program& program, std::set<Case>& cases) {
  for (std::uint32_t stage = 0; stage < program.stages.size(); ++stage) {
    program::Coordinates at{};
    at[static_cast<std::size_t>(program::Axis::Pp)] = static_cast<int>(stage);
    const RankId rank = program.grid.rank(at);
    for (const program::Op& op : program.stages[stage].ops) {
      const auto members = [&](program::CommunicatorId id) {
        return static_cast<int>(program.members(id, rank).size());
      };
      if (op.kind == program::OpKind::Send) cases.insert({"send", 2, op.bytes.count()});
      if (op.kind != program::OpKind::Collective) continue;
      cases.insert(
          {std::string(to_string(op.collective)), members(op.communicator), op.bytes.count()});
    }
  }
  const int tp = program.grid.size(program::Axis::Tp);
  for (const program::KernelList& list : program.kernel_lists) {
    for (const Kernel& kernel : list.kernels) {
      if (kernel.kind != KernelKind::Collective) continue;
      cases.insert({std::string(to_string(kernel.collective)), tp, kernel.bytes.count()});
    }
  }
}

std::set<Case> all_cases(const CalibrateOptions& options) {
  std::set<Case> cases;
  if (options.job != nullptr) add_cases(options.job->program, cases);
  std::set<int> sizes;
  for (const Case& each : cases) sizes.insert(each.ranks);
  if (options.job == nullptr) {
    for (int ranks = 2; ranks <= options.processes; ++ranks) sizes.insert(ranks);
  }
  for (const int ranks : sizes) {
    for (const char* kind : kKinds) {
      if (std::string(kind) == "send" && ranks != 2) continue;
      for (const std::int64_t bytes : kSweep) {
        const std::int64_t unit = std::int64_t{4} * ranks;
        cases.insert({kind, ranks, (bytes + unit - 1) / unit * unit});
      }
    }
  }
  std::erase_if(cases, [&](const Case& each) {
    return each.ranks > options.processes || each.kind == "all_to_all";
  });
  return cases;
}

int repeats_of(std::int64_t bytes) {
  return static_cast<int>(std::clamp<std::int64_t>((std::int64_t{4} << 20) / bytes, 5, 20));
}

/// One collective, or one message from rank 0 to rank 1.
void run(Communicator& group, const Case& each, at::Tensor& whole, at::Tensor& part) {
  if (each.kind == "all_reduce") return group.all_reduce(whole, Reduction::Sum);
  if (each.kind == "all_gather") return group.all_gather(part, whole);
  if (each.kind == "reduce_scatter") return group.reduce_scatter(whole, part);
  if (each.kind == "broadcast") return group.broadcast(whole, 0);
  FORESAIL_EXPECT(each.kind == "send");
  if (group.rank() == 0) group.send(whole, 1);
  if (group.rank() == 1) group.recv(whole, 0);
}

/// What a rank spends in a collective, waiting for the others included: ranks that compute the same
/// never arrive together, and the sum of compute and such times is the step. Of a message, the time
/// from the last arrival to its end. `times` has start and end of every sample of every rank, ns.
double median_seconds(const Case& each, const at::Tensor& times) {
  const at::Tensor starts = times.select(2, 0).to(at::kDouble);
  const at::Tensor ends = times.select(2, 1).to(at::kDouble);
  const at::Tensor spans = each.kind == "send"
                               ? std::get<0>(ends.max(0)) - std::get<0>(starts.max(0))
                               : (ends - starts).mean(0);
  const at::Tensor seconds = spans.mul(1e-9).contiguous();
  const auto* first = seconds.data_ptr<double>();
  return median({first, first + seconds.numel()});
}

/// Between two transfers the ranks compute, as in a step: a rank that waits sleeps, and caches
/// hold something else. On devices, whose clocks are held against that of the host, transfers are
/// only queued.
double seconds_of(Communicator& group, Device& device, const Case& each) {
  const at::TensorOptions options = at::device(device.place()).dtype(at::kFloat);
  at::Tensor whole = at::zeros({std::max<std::int64_t>(1, each.bytes / 4)}, options);
  at::Tensor part = at::zeros({std::max<std::int64_t>(1, whole.numel() / each.ranks)}, options);
  const at::Tensor other = at::ones({384, 384}, options);
  run(group, each, whole, part);
  wait_for(device);
  device.begin_step();
  const int repeats = repeats_of(each.bytes);
  std::vector<Mark> marks;
  for (int i = 0; i < repeats; ++i) {
    for (int k = 0; k < kComputeBetween; ++k) at::mm(other, other);
    marks.push_back(device.mark());
    run(group, each, whole, part);
    marks.push_back(device.mark());
  }
  at::Tensor mine = at::empty({repeats, 2}, at::kLong);
  for (std::size_t i = 0; i < marks.size(); ++i) {
    mine.data_ptr<std::int64_t>()[i] = device.passed_ns(marks[i]);
  }
  at::Tensor all = at::empty({group.size(), repeats, 2}, options.dtype(at::kLong));
  group.all_gather(mine.to(device.place()), all);
  return median_seconds(each, to_host(all));
}

/// The first `size` ranks, connected; null on the others, which stand by.
std::unique_ptr<Communicator> connect(const CalibrateOptions& options, int size) {
  const std::string kind = "calibrate/" + std::to_string(size);
  if (options.rank >= size) {
    options.endpoint->stand_by(kind, *options.store);
    return nullptr;
  }
  return options.endpoint->connect({.name = kind, .rank = options.rank, .size = size, .kind = kind},
                                   *options.store);
}

}  // namespace

std::vector<program::TransferTiming> measure_transfers(const CalibrateOptions& options) {
  std::vector<program::TransferTiming> timings;
  if (options.endpoint == nullptr) return timings;
  const auto cpu = options.device == nullptr ? make_cpu_device() : nullptr;
  Device& device = cpu != nullptr ? *cpu : *options.device;
  std::map<int, std::unique_ptr<Communicator>> groups;
  for (const Case& each : all_cases(options)) {
    const auto [place, is_new] = groups.try_emplace(each.ranks);
    if (is_new) place->second = connect(options, each.ranks);
    if (place->second == nullptr) continue;
    const double seconds = seconds_of(*place->second, device, each);
    if (options.rank != 0) continue;
    timings.push_back({.kind = each.kind,
                       .ranks = each.ranks,
                       .bytes = Bytes(each.bytes),
                       .time = duration_from_seconds(seconds)});
  }
  options.endpoint->check();
  return timings;
}

}  // namespace foresail::runtime
