#include <algorithm>
#include <cstddef>
#include <deque>
#include <utility>

#include "foresail/base/error.h"
#include "schedule_orders.h"

namespace foresail::planner {
namespace {

using program::Pass;

/// One stage's order. Its *near* chunk serves the end of the pipeline that is closer: that of
/// chunk 0 in the first half of the stages, of chunk 1 in the second half.
class DualOrder {
 public:
  DualOrder(const ScheduleShape& shape, int stage)
      : half_(shape.microbatches / 2), near_(stage < shape.stages / 2 ? 0 : 1) {}

  enum Side { Near, Far };
  enum class Weights { Now, Later };

  void forward(Side side) { order_.push_back(next(Pass::Forward, side)); }
  void backward(Side side, Weights weights = Weights::Now) {
    if (weights == Weights::Now) {
      order_.push_back(next(Pass::Backward, side));
      return;
    }
    order_.push_back(next(Pass::BackwardInput, side));
    delayed_.push_back(order_.back());
  }
  void weight() {
    FORESAIL_EXPECT(!delayed_.empty());
    order_.push_back(delayed_.front());
    order_.back().pass = Pass::BackwardWeight;
    delayed_.pop_front();
  }
  void joined(Side forward_side, Side backward_side) {
    forward(forward_side);
    order_.back().is_joined = true;
    backward(backward_side);
  }
  PassOrder take() && {
    FORESAIL_EXPECT(delayed_.empty());
    return std::move(order_);
  }

 private:
  SchedulePass next(Pass pass, Side side) {
    const int chunk = side == Near ? near_ : 1 - near_;
    int& count = (pass == Pass::Forward ? forwards_ : backwards_)[side];
    return {pass, chunk * half_ + count++, chunk};
  }

  int half_;
  int near_;
  int forwards_[2] = {};
  int backwards_[2] = {};
  std::deque<SchedulePass> delayed_;  // input halves whose weight half is due
  PassOrder order_;
};

}  // namespace

// The eight steps of deepseek-ai/DualPipe's `step`, in its numbering.
PassOrder dualpipe_order(const ScheduleShape& shape, int stage) {
  using Weights = DualOrder::Weights;
  constexpr auto kNear = DualOrder::Near;
  constexpr auto kFar = DualOrder::Far;
  const int depth = std::min(stage, shape.stages - 1 - stage);  // from the closer end
  const int inner = shape.stages / 2 - 1 - depth;               // stages from here to the middle
  const int steady = shape.microbatches / 2 - shape.stages + depth + 1;
  DualOrder order(shape, stage);
  for (int i = 0; i < 2 * inner; ++i) order.forward(kNear);  // 1
  for (int i = 0; i < depth + 1; ++i) {                      // 2
    order.forward(kNear);
    order.forward(kFar);
  }
  for (int i = 0; i < inner; ++i) {  // 3
    order.backward(kFar, Weights::Later);
    order.weight();
    order.forward(kFar);
  }
  for (int i = 0; i < steady; ++i) {  // 4
    if (i == 0 && inner == 0) {       // the two middle stages wait for each other otherwise
      order.forward(kNear);
      order.backward(kFar);
    } else {
      order.joined(kNear, kFar);
    }
    order.joined(kFar, kNear);
  }
  for (int i = 0; i < inner; ++i) {  // 5
    order.backward(kFar);
    order.joined(kFar, kNear);
  }
  // 6: of the 2 (depth + 1) backward passes the second half delays its weights.
  for (int i = 0; i < 2 * (depth + 1); ++i) {
    order.backward(i % 2 == 0 ? kFar : kNear, i > depth ? Weights::Later : Weights::Now);
  }
  for (int i = 0; i < inner; ++i) {  // 7
    order.weight();
    order.backward(kNear, Weights::Later);
  }
  for (int i = 0; i < depth + 1; ++i) order.weight();  // 8
  return std::move(order).take();
}

}  // namespace foresail::planner
