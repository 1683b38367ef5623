#include "pass_graph.h"

#include <limits>

#include "foresail/base/error.h"

namespace foresail::planner {

using program::Pass;

namespace {
constexpr std::size_t kUnplaced = std::numeric_limits<std::size_t>::max();
}  // namespace

PassGraph::PassGraph(const Schedule& schedule)
    : stages_(schedule.stages), chunks_(schedule.chunks), microbatches_(schedule.microbatches) {
  FORESAIL_EXPECT(schedule.order.size() == static_cast<std::size_t>(stages_));
  const std::size_t passes =
      2 * static_cast<std::size_t>(chunks_) * static_cast<std::size_t>(microbatches_);
  for (const auto& order : schedule.order) {
    FORESAIL_EXPECT(order.size() == passes);
    std::vector<std::size_t> positions(passes, kUnplaced);
    for (std::size_t at = 0; at < order.size(); ++at) {
      FORESAIL_EXPECT(order[at].chunk >= 0 && order[at].chunk < chunks_);
      FORESAIL_EXPECT(order[at].microbatch >= 0 && order[at].microbatch < microbatches_);
      std::size_t& position = positions[index(order[at])];
      FORESAIL_EXPECT(position == kUnplaced);
      position = at;
    }
    position_.push_back(std::move(positions));
  }
}

std::optional<PassPlace> PassGraph::input(const PassPlace& place) const {
  const int global = global_stage(place);
  const int microbatch = place.pass.microbatch;
  if (place.pass.pass == Pass::Forward) {
    if (global == 0) return std::nullopt;
    return place_at(global - 1, Pass::Forward, microbatch);
  }
  if (global == stages_ * chunks_ - 1) return place_at(global, Pass::Forward, microbatch);
  return place_at(global + 1, Pass::Backward, microbatch);
}

std::optional<PassPlace> PassGraph::output(const PassPlace& place) const {
  const bool is_forward = place.pass.pass == Pass::Forward;
  const int global = global_stage(place) + (is_forward ? 1 : -1);
  if (global < 0 || global == stages_ * chunks_) return std::nullopt;
  return place_at(global, place.pass.pass, place.pass.microbatch);
}

std::size_t PassGraph::position(const PassPlace& place) const {
  return position_[static_cast<std::size_t>(place.stage)][index(place.pass)];
}

PassPlace PassGraph::place_at(int global, Pass pass, int microbatch) const {
  return {global % stages_, {pass, microbatch, global / stages_}};
}

std::size_t PassGraph::index(const SchedulePass& pass) const {
  FORESAIL_EXPECT(pass.pass == Pass::Forward || pass.pass == Pass::Backward);
  const bool is_forward = pass.pass == Pass::Forward;
  const int row = is_forward ? pass.chunk : chunks_ + pass.chunk;
  return static_cast<std::size_t>(row) * static_cast<std::size_t>(microbatches_) +
         static_cast<std::size_t>(pass.microbatch);
}

double cost_of(const PassCosts& costs, const PassPlace& place) {
  const bool is_forward = place.pass.pass == Pass::Forward;
  const auto& table = is_forward ? costs.forward_of : costs.backward_of;
  if (table.empty()) return is_forward ? costs.forward : costs.backward;
  return table[static_cast<std::size_t>(place.stage)][static_cast<std::size_t>(place.pass.chunk)];
}

}  // namespace foresail::planner
