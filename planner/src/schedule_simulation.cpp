#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "foresail/base/error.h"
#include "foresail/planner/schedule.h"
#include "pass_graph.h"

namespace foresail::planner {
namespace {

/// Runs every stage as far as its inputs allow, then the stages whose inputs came meanwhile.
class Run {
 public:
  Run(const Schedule& schedule, const PassCosts& costs)
      : schedule_(schedule), costs_(costs), graph_(schedule) {
    const auto stages = static_cast<std::size_t>(schedule.stages);
    next_.assign(stages, 0);
    free_at_.assign(stages, 0);
    for (const auto& order : schedule.order) {
      timed_.start.emplace_back(order.size(), 0.0);
      timed_.end.emplace_back(order.size(), 0.0);
    }
  }

  TimedSchedule finish() {
    for (int stage = schedule_.stages - 1; stage >= 0; --stage) ready_.push_back(stage);
    while (!ready_.empty()) {
      const int stage = ready_.back();
      ready_.pop_back();
      advance(stage);
    }
    for (int stage = 0; stage < schedule_.stages; ++stage) {
      if (!is_done(stage)) fail(stage);
    }
    for (const auto& ends : timed_.end) {
      if (!ends.empty()) timed_.makespan = std::max(timed_.makespan, ends.back());
    }
    return std::move(timed_);
  }

 private:
  bool is_done(int stage) const {
    const auto s = static_cast<std::size_t>(stage);
    return next_[s] == schedule_.order[s].size();
  }
  const SchedulePass& head(int stage) const {
    const auto s = static_cast<std::size_t>(stage);
    return schedule_.order[s][next_[s]];
  }
  bool has_run(const PassPlace& place) const {
    return graph_.position(place) < next_[static_cast<std::size_t>(place.stage)];
  }

  void advance(int stage) {
    const auto s = static_cast<std::size_t>(stage);
    while (!is_done(stage)) {
      const std::size_t count = head(stage).is_joined ? 2 : 1;
      double start = free_at_[s];
      double work = 0;
      for (std::size_t at = next_[s]; at < next_[s] + count; ++at) {
        const PassPlace place{stage, schedule_.order[s][at]};
        const auto arrival = arrival_of(place);
        if (!arrival) return;
        start = std::max(start, *arrival);
        work += cost_of(costs_, place);
      }
      free_at_[s] = start + work;
      for (std::size_t at = next_[s]; at < next_[s] + count; ++at) {
        timed_.start[s][at] = start;
        timed_.end[s][at] = start + work;
        const auto output = graph_.output({stage, schedule_.order[s][at]});
        if (!output || output->stage == stage) continue;
        if (costs_.blocking) free_at_[s] += costs_.message;
        ready_.push_back(output->stage);
      }
      next_[s] += count;
    }
  }

  /// When the input of a pass is there; nothing as long as nobody knows.
  std::optional<double> arrival_of(const PassPlace& place) const {
    const auto input = graph_.input(place);
    if (!input) return 0.0;
    if (!has_run(*input)) return std::nullopt;
    const auto from = static_cast<std::size_t>(input->stage);
    const double delay = input->stage == place.stage ? 0 : costs_.message;
    return timed_.end[from][graph_.position(*input)] + delay;
  }

  /// The pass that the head of `stage` (or, if joined, the one behind it) has yet to see.
  PassPlace awaited(int stage) const {
    const auto s = static_cast<std::size_t>(stage);
    const PassPlace place{stage, head(stage)};
    if (arrival_of(place)) return *graph_.input({stage, schedule_.order[s][next_[s] + 1]});
    return *graph_.input(place);
  }

  /// Follows "waits for" from `stage` until a stage repeats, and names the cycle.
  [[noreturn]] void fail(int stage) const {
    std::vector<int> path;
    while (std::ranges::find(path, stage) == path.end()) {
      path.push_back(stage);
      stage = awaited(stage).stage;
    }
    std::string text;
    for (auto at = std::ranges::find(path, stage); at != path.end(); ++at) {
      const PassPlace needed = awaited(*at);
      text += fmt::format("stage {} {} waits for stage {} {}", *at, to_text(head(*at)),
                          needed.stage, to_text(needed.pass));
      if (head(needed.stage) != needed.pass) {
        text += fmt::format(" behind {}", to_text(head(needed.stage)));
      }
      text += "; ";
    }
    throw Error(ErrorCode::InvalidInput,
                fmt::format("schedule of {} stages, {} chunks, {} microbatches deadlocks: {}back "
                            "to the first",
                            schedule_.stages, schedule_.chunks, schedule_.microbatches, text));
  }

  const Schedule& schedule_;
  const PassCosts& costs_;
  PassGraph graph_;
  std::vector<std::size_t> next_;
  std::vector<double> free_at_;
  std::vector<int> ready_;
  TimedSchedule timed_;
};

}  // namespace

TimedSchedule simulate(const Schedule& schedule, const PassCosts& costs) {
  return Run(schedule, costs).finish();
}

}  // namespace foresail::planner
