#include "pass_graph.h"

#include <limits>

#include "foresail/base/error.h"

namespace foresail::planner {

using program::Pass;

namespace {
constexpr std::size_t kUnplaced = std::numeric_limits<std::size_t>::max();
}  // namespace

PassGraph::PassGraph(const Schedule& schedule)
    : schedule_(schedule), global_(schedule.stage_map, schedule.stages, schedule.chunks) {
  FORESAIL_EXPECT(schedule.order.size() == static_cast<std::size_t>(schedule.stages));
  const std::size_t slots = 3 * static_cast<std::size_t>(schedule.chunks) *
                            static_cast<std::size_t>(schedule.microbatches);
  for (const PassOrder& order : schedule.order) {
    std::vector<std::size_t> positions(slots, kUnplaced);
    for (std::size_t at = 0; at < order.size(); ++at) {
      const SchedulePass& pass = order[at];
      FORESAIL_EXPECT(pass.chunk >= 0 && pass.chunk < schedule.chunks);
      FORESAIL_EXPECT(pass.microbatch >= 0 && pass.microbatch < schedule.microbatches);
      std::size_t& position = positions[index(row_of(pass.pass), pass.chunk, pass.microbatch)];
      FORESAIL_EXPECT(position == kUnplaced);
      position = at;
    }
    position_.push_back(std::move(positions));
  }
  check_complete();
}

void PassGraph::check_complete() const {
  for (int stage = 0; stage < schedule_.stages; ++stage) {
    std::size_t due = 0;
    for (int chunk = 0; chunk < schedule_.chunks; ++chunk) {
      for (int at = 0; at < schedule_.microbatches; ++at) {
        if (!global_.is_visited(chunk, at, schedule_.microbatches)) continue;
        FORESAIL_EXPECT(position(Row::Forward, {stage, chunk}, at) != kUnplaced);
        FORESAIL_EXPECT(position(Row::Backward, {stage, chunk}, at) != kUnplaced);
        const PassPlace backward = place_at(Row::Backward, {stage, chunk}, at);
        const bool is_half = backward.pass.pass == Pass::BackwardInput;
        const bool has_weight = position(Row::Weight, {stage, chunk}, at) != kUnplaced;
        FORESAIL_EXPECT(is_half == has_weight);
        due += is_half ? 3 : 2;
      }
    }
    FORESAIL_EXPECT(schedule_.order[static_cast<std::size_t>(stage)].size() == due);
  }
}

std::optional<PassPlace> PassGraph::input(const PassPlace& place) const {
  const program::ChunkPlace at = chunk_of(place);
  const int microbatch = place.pass.microbatch;
  switch (row_of(place.pass.pass)) {
    case Row::Forward: {
      const auto before = global_.previous(at);
      if (!before) return std::nullopt;
      return place_at(Row::Forward, *before, microbatch);
    }
    case Row::Backward: {
      const auto behind = global_.next(at);
      if (!behind) return place_at(Row::Forward, at, microbatch);
      return place_at(Row::Backward, *behind, microbatch);
    }
    case Row::Weight:
      return place_at(Row::Backward, at, microbatch);
  }
  return std::nullopt;
}

std::optional<PassPlace> PassGraph::output(const PassPlace& place) const {
  const Row row = row_of(place.pass.pass);
  if (row == Row::Weight) return std::nullopt;
  const program::ChunkPlace at = chunk_of(place);
  const auto to = row == Row::Forward ? global_.next(at) : global_.previous(at);
  if (!to) return std::nullopt;
  return place_at(row, *to, place.pass.microbatch);
}

std::size_t PassGraph::position(const PassPlace& place) const {
  return position(row_of(place.pass.pass), chunk_of(place), place.pass.microbatch);
}

std::size_t PassGraph::position(Row row, program::ChunkPlace at, int microbatch) const {
  return position_[static_cast<std::size_t>(at.stage)][index(row, at.chunk, microbatch)];
}

PassPlace PassGraph::place_at(Row row, program::ChunkPlace at, int microbatch) const {
  const auto& order = schedule_.order[static_cast<std::size_t>(at.stage)];
  return {at.stage, order[position(row, at, microbatch)]};
}

PassGraph::Row PassGraph::row_of(Pass pass) {
  FORESAIL_EXPECT(pass != Pass::Optimizer);
  if (pass == Pass::Forward) return Row::Forward;
  return pass == Pass::BackwardWeight ? Row::Weight : Row::Backward;
}

std::size_t PassGraph::index(Row row, int chunk, int microbatch) const {
  const std::size_t line =
      static_cast<std::size_t>(row) * static_cast<std::size_t>(schedule_.chunks) +
      static_cast<std::size_t>(chunk);
  return line * static_cast<std::size_t>(schedule_.microbatches) +
         static_cast<std::size_t>(microbatch);
}

double cost_of(const PassCosts& costs, const PassPlace& place) {
  const auto chosen = [&](double uniform, const std::vector<std::vector<double>>& table) {
    if (table.empty()) return uniform;
    return table[static_cast<std::size_t>(place.stage)][static_cast<std::size_t>(place.pass.chunk)];
  };
  switch (place.pass.pass) {
    case Pass::Forward:
      return chosen(costs.forward, costs.forward_of);
    case Pass::BackwardInput:
      return chosen(costs.backward_input, costs.backward_input_of);
    case Pass::BackwardWeight:
      return chosen(costs.backward_weight, costs.backward_weight_of);
    case Pass::Backward:
    case Pass::Optimizer:
      break;
  }
  return chosen(costs.backward, costs.backward_of);
}

}  // namespace foresail::planner
