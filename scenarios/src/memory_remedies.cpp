#include "memory_remedies.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace foresail::scenarios {
namespace {

using models::Recompute;
using planner::Layout;
using planner::Plan;
using planner::ScheduleKind;

Bytes fullest(const Plan& plan) {
  Bytes most;
  for (int stage = 0; stage < plan.layout.pp; ++stage) {
    most = std::max(most, planner::memory_need(plan, stage).peak());
  }
  return most;
}

/// A changed layout and how to say it.
struct Change {
  std::string text;
  Layout layout;
};

class Changes {
 public:
  explicit Changes(const Layout& layout) : layout_(layout) {}

  std::vector<Change> all() {
    add_switches();
    add_degrees();
    return std::move(changes_);
  }

 private:
  template <class Apply>
  void add(std::string text, const Apply& apply) {
    Change change{std::move(text), layout_};
    apply(change.layout);
    changes_.push_back(std::move(change));
  }

  /// What must change with that, too.
  std::string unaligned() const {
    return layout_.overlap.aligned.any() ? ", overlap.aligned: false" : "";
  }

  void add_switches() {
    if (layout_.tp > 1 && !layout_.sequence_parallel) {
      add("sequence_parallel: true", [](Layout& layout) { layout.sequence_parallel = true; });
    }
    for (const Recompute recompute : {Recompute::Selective, Recompute::Full}) {
      if (recompute <= layout_.recompute) continue;
      add(fmt::format("recompute: {}", to_string(recompute)),
          [&](Layout& layout) { layout.recompute = recompute; });
    }
    for (int zero = layout_.zero_stage + 1; zero <= 3; ++zero) {
      add(fmt::format("zero_stage: {}", zero) + (zero == 3 ? unaligned() : ""),
          [&](Layout& layout) {
            layout.zero_stage = zero;
            if (zero == 3) layout.overlap.aligned = false;
          });
    }
    if (layout_.schedule == ScheduleKind::Gpipe && layout_.pp > 1) {
      add("schedule: 1f1b",
          [](Layout& layout) { layout.schedule = ScheduleKind::OneForwardOneBackward; });
    }
    if (layout_.schedule == ScheduleKind::Interleaved && layout_.v > 1) {
      add("schedule: 1f1b, v: 1" + unaligned(), [](Layout& layout) {
        layout.schedule = ScheduleKind::OneForwardOneBackward;
        layout.overlap.aligned = false;
        layout.v = 1;
        layout.group_size = 0;
      });
    }
    if (layout_.overlap.dp.any()) {
      add("overlap.dp: false" + unaligned(), [](Layout& layout) {
        layout.overlap.dp = false;
        layout.overlap.aligned = false;
      });
    }
  }

  void add_degrees() {
    if (layout_.microbatch_size > 1) {
      add(fmt::format("microbatch_size: {}", layout_.microbatch_size / 2),
          [](Layout& layout) { layout.microbatch_size /= 2; });
    }
    if (layout_.dp % 2 != 0) return;
    const int dp = layout_.dp / 2;
    add(fmt::format("tp: {}, dp: {}", 2 * layout_.tp, dp), [&](Layout& layout) {
      layout.tp *= 2;
      layout.dp = dp;
    });
    add(fmt::format("cp: {}, dp: {}", 2 * layout_.cp, dp), [&](Layout& layout) {
      layout.cp *= 2;
      layout.dp = dp;
    });
    add(fmt::format("pp: {}, dp: {}", 2 * layout_.pp, dp), [&](Layout& layout) {
      layout.pp *= 2;
      layout.dp = dp;
    });
  }

  const Layout& layout_;
  std::vector<Change> changes_;
};

}  // namespace

std::vector<MemoryRemedy> memory_remedies(const Plan& plan) {
  const Bytes now = fullest(plan);
  std::vector<MemoryRemedy> remedies;
  for (const Change& change : Changes(plan.layout).all()) {
    Plan other = plan;
    other.layout = change.layout;
    const int ranks = planner::job_devices(plan);
    if (!planner::check_laws(other.model, other.layout, other.training, ranks).empty()) continue;
    const Bytes peak = fullest(other);
    if (peak < now) remedies.push_back({change.text, now - peak, peak});
  }
  std::ranges::stable_sort(
      remedies, [](const MemoryRemedy& a, const MemoryRemedy& b) { return a.saved > b.saved; });
  return remedies;
}

}  // namespace foresail::scenarios
