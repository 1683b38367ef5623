#include <algorithm>

#include "foresail/base/error.h"
#include "schedule_orders.h"

namespace foresail::planner {
namespace {

using program::Pass;

/// 1F1B with `ahead` forwards before the first backward and weight halves `delay` steps behind.
PassOrder delayed_order(int microbatches, int ahead, int delay) {
  PassOrder order;
  ahead = std::min(ahead, microbatches);
  for (int at = 0; at < ahead; ++at) order.push_back({Pass::Forward, at, 0});
  for (int at = 0; at < microbatches + delay; ++at) {
    if (at + ahead < microbatches) order.push_back({Pass::Forward, at + ahead, 0});
    if (at < microbatches) order.push_back({Pass::BackwardInput, at, 0});
    if (at >= delay) order.push_back({Pass::BackwardWeight, at - delay, 0});
  }
  return order;
}

/// Appends passes, each kind of each chunk with microbatches 0, 1, 2 ...
class Counted {
 public:
  void add(Pass pass, int chunk) { order_.push_back({pass, next(pass, chunk)++, chunk}); }
  int count(Pass pass, int chunk) { return next(pass, chunk); }
  PassOrder take(int microbatches) && {
    std::erase_if(order_, [&](const SchedulePass& at) { return at.microbatch >= microbatches; });
    return std::move(order_);
  }

 private:
  int& next(Pass pass, int chunk) {
    return next_[static_cast<std::size_t>(pass)][static_cast<std::size_t>(chunk)];
  }
  int next_[4][2] = {};
  PassOrder order_;
};

}  // namespace

PassOrder zb_h1_order(const ScheduleShape& shape, int stage) {
  return delayed_order(shape.microbatches, shape.stages - 1 - stage, stage);
}

PassOrder zb_h2_order(const ScheduleShape& shape, int stage) {
  return delayed_order(shape.microbatches, 2 * (shape.stages - 1 - stage), 2 * stage);
}

PassOrder zb_v_order(const ScheduleShape& shape, int stage) {
  const int p = shape.stages;
  const int total = std::max(2 * p - 1, shape.microbatches);
  Counted order;
  const auto forward = [&](int chunk) { order.add(Pass::Forward, chunk); };
  const auto input = [&](int chunk) { order.add(Pass::BackwardInput, chunk); };
  const auto weight = [&](int chunk) { order.add(Pass::BackwardWeight, chunk); };
  const auto whole = [&](int chunk) {
    input(chunk);
    weight(chunk);
  };
  // Warm-up.
  for (int k = 0; k < 2 * (p - stage) - 1; ++k) forward(0);
  for (int k = 0; k < stage; ++k) {
    forward(1);
    forward(0);
  }
  for (int k = 0; k < p - stage; ++k) {
    forward(1);
    whole(1);
  }
  // Steady state.
  while (order.count(Pass::Forward, 1) < total) {
    if (order.count(Pass::Forward, 0) < total) forward(0);
    whole(0);
    forward(1);
    whole(1);
  }
  // Cool-down: weight halves fill what would be a bubble.
  for (int k = 0; k < stage; ++k) {
    input(0);
    input(1);
  }
  for (int k = 0; k < p - stage; ++k) whole(0);
  for (const int chunk : {1, 0}) {
    while (order.count(Pass::BackwardWeight, chunk) < total) weight(chunk);
  }
  return std::move(order).take(shape.microbatches);
}

}  // namespace foresail::planner
