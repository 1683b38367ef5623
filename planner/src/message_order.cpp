#include "message_order.h"

#include <algorithm>
#include <cstddef>
#include <optional>
#include <tuple>

#include "foresail/base/error.h"

namespace foresail::planner {
namespace {

using program::Pass;

std::vector<Message> order_by_end(const Schedule& schedule, const PassCosts& costs) {
  const PassGraph graph(schedule);
  const TimedSchedule timed = simulate(schedule, costs);
  struct Keyed {
    double end;
    Message message;
    auto key() const {
      const SchedulePass& pass = message.from.pass;
      return std::tuple(end, pass.pass == Pass::Forward ? 0 : 1, pass.microbatch,
                        message.from.stage, pass.chunk);
    }
  };
  std::vector<Keyed> keyed;
  for (int stage = 0; stage < schedule.stages; ++stage) {
    const auto s = static_cast<std::size_t>(stage);
    for (std::size_t at = 0; at < schedule.order[s].size(); ++at) {
      const PassPlace from{stage, schedule.order[s][at]};
      const auto to = graph.output(from);
      if (to && to->stage != stage) keyed.push_back({timed.end[s][at], {from, *to}});
    }
  }
  std::ranges::sort(keyed, [](const Keyed& a, const Keyed& b) { return a.key() < b.key(); });
  std::vector<Message> messages;
  messages.reserve(keyed.size());
  for (const Keyed& entry : keyed) messages.push_back(entry.message);
  return messages;
}

/// Passes run as soon as inputs and, if blocking, the stage's own last message allow.
class LaneRun {
 public:
  LaneRun(const Schedule& schedule, const PassCosts& costs)
      : schedule_(schedule), costs_(costs), graph_(schedule) {
    const auto stages = static_cast<std::size_t>(schedule.stages);
    next_.assign(stages, 0);
    free_at_.assign(stages, 0);
    lane_free_at_.assign(stages, 0);
    for (const auto& order : schedule.order) {
      arrived_.emplace_back(order.size(), kNever);
      sent_.emplace_back(order.size(), kNever);
      end_.emplace_back(order.size(), kNever);
    }
  }

  double finish(const std::vector<Message>& messages) {
    for (const Message& message : messages) transfer(message);
    for (int stage = 0; stage < schedule_.stages; ++stage) {
      advance(stage);
      const auto s = static_cast<std::size_t>(stage);
      FORESAIL_EXPECT(next_[s] == schedule_.order[s].size());
    }
    return *std::ranges::max_element(free_at_);
  }

 private:
  static constexpr double kNever = -1;
  static constexpr std::size_t kOne = 1;

  void transfer(const Message& message) {
    const auto from = static_cast<std::size_t>(message.from.stage);
    const auto to = static_cast<std::size_t>(message.to.stage);
    const std::size_t produced = graph_.position(message.from);
    advance(message.from.stage);
    FORESAIL_EXPECT(end_[from][produced] != kNever);
    const double start = std::max({lane_free_at_[from], lane_free_at_[to], end_[from][produced]});
    const double end = start + costs_.message;
    lane_free_at_[from] = lane_free_at_[to] = end;
    sent_[from][produced] = end;
    arrived_[to][graph_.position(message.to)] = end;
  }

  void advance(int stage) {
    const auto s = static_cast<std::size_t>(stage);
    const auto& order = schedule_.order[s];
    while (next_[s] < order.size()) {
      const std::size_t first = next_[s];
      const std::size_t count = order[first].is_joined ? 2 : 1;
      double start = free_at_[s];
      double work = 0;
      for (std::size_t at = first; at < first + count; ++at) {
        const PassPlace place{stage, order[at]};
        const auto input = graph_.input(place);
        if (input && input->stage != stage) {
          if (arrived_[s][at] == kNever) return;
          start = std::max(start, arrived_[s][at]);
        }
        work += cost_of(costs_, place);
      }
      if (costs_.blocking) {
        const auto sent = last_sent(stage, first);
        if (!sent) return;
        start = std::max(start, *sent);
      }
      free_at_[s] = start + work;
      for (std::size_t at = first; at < first + count; ++at) end_[s][at] = free_at_[s];
      next_[s] += count;
    }
  }

  /// When the messages of what ran just before position `first` have left; nothing if one has not.
  std::optional<double> last_sent(int stage, std::size_t first) const {
    double last = 0;
    const auto s = static_cast<std::size_t>(stage);
    const auto& order = schedule_.order[s];
    const std::size_t count = first >= 2 && order[first - 2].is_joined ? 2 : std::min(first, kOne);
    for (std::size_t at = first - count; at < first; ++at) {
      const auto output = graph_.output({stage, order[at]});
      if (!output || output->stage == stage) continue;
      if (sent_[s][at] == kNever) return std::nullopt;
      last = std::max(last, sent_[s][at]);
    }
    return last;
  }

  const Schedule& schedule_;
  const PassCosts& costs_;
  PassGraph graph_;
  std::vector<std::size_t> next_;
  std::vector<double> free_at_, lane_free_at_;
  std::vector<std::vector<double>> arrived_, sent_, end_;
};

}  // namespace

double makespan_in_order(const Schedule& schedule, const PassCosts& costs,
                         const std::vector<Message>& messages) {
  return LaneRun(schedule, costs).finish(messages);
}

std::vector<Message> message_order(const Schedule& schedule, const PassCosts& costs) {
  FORESAIL_EXPECT(costs.message > 0);
  PassCosts overlapped = costs;
  overlapped.blocking = false;
  std::vector<Message> messages = order_by_end(schedule, overlapped);
  if (!costs.blocking) return messages;
  std::vector<Message> alternative = order_by_end(schedule, costs);
  if (makespan_in_order(schedule, costs, alternative) <
      makespan_in_order(schedule, costs, messages)) {
    return alternative;
  }
  return messages;
}

}  // namespace foresail::planner
