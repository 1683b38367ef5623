#include "stage_order.h"

#include <algorithm>

namespace foresail::program {

StageOrder::StageOrder(const StageProgram& stage) {
  const std::size_t count = stage.ops.size();
  clocks_.assign(count, Clock{});
  starts_.assign(count, false);
  std::vector<std::size_t> waits(count, 0);
  std::vector<std::vector<std::size_t>> next(count);
  std::array<std::size_t, kLaneCount> tail;
  tail.fill(count);
  for (const Op& op : stage.ops) {
    const std::size_t index = lanes_.size();
    lanes_.push_back(static_cast<std::size_t>(op.lane));
    std::size_t& before = tail[lanes_[index]];
    if (before != count) {
      next[before].push_back(index);
      ++waits[index];
    }
    before = index;
    for (const OpId id : op.after) next[id.value].push_back(index);
    waits[index] += op.after.size();
  }
  std::vector<std::size_t> ready;
  for (std::size_t i = 0; i < count; ++i) {
    if (waits[i] == 0) ready.push_back(i);
  }
  while (!ready.empty()) {
    const std::size_t done = ready.back();
    ready.pop_back();
    starts_[done] = true;
    Clock known = clocks_[done];
    known[lanes_[done]] = std::max(known[lanes_[done]], done + 1);
    for (const std::size_t follower : next[done]) {
      Clock& clock = clocks_[follower];
      for (std::size_t lane = 0; lane < clock.size(); ++lane) {
        clock[lane] = std::max(clock[lane], known[lane]);
      }
      if (--waits[follower] == 0) ready.push_back(follower);
    }
  }
}

bool StageOrder::is_finished(std::size_t earlier, std::size_t later) const {
  return !starts_[later] || clocks_[later][lanes_[earlier]] > earlier;
}

}  // namespace foresail::program
