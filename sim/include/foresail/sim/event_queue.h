/// \file
/// Pending events, ordered by (time, insertion). The second key makes ties deterministic, which is
/// what lets one seed reproduce one run byte for byte.
#pragma once

#include <cstdint>
#include <optional>

#include "foresail/base/error.h"
#include "foresail/base/units.h"
#include "foresail/sim/quad_heap.h"

namespace foresail::sim {

/// `Event` is a small value; nothing is allocated per event but the heap's own growth.
template <class Event>
class EventQueue {
 public:
  /// Requires when >= now().
  void schedule_at(SimTime when, Event event) {
    FORESAIL_EXPECT(when >= now_);
    pending_.push({when, next_sequence_++, event});
  }
  std::optional<SimTime> next_time() const {
    if (pending_.empty()) return std::nullopt;
    return pending_.front().when;
  }
  /// Takes the next event and moves the clock to it. Requires a pending event.
  Event take_next() {
    FORESAIL_EXPECT(!pending_.empty());
    const Entry entry = pending_.front();
    pending_.pop();
    now_ = entry.when;
    ++taken_;
    return entry.event;
  }
  /// Calls `first` with the next event, if there is one, and `other` with each of those of which
  /// one follows it, if nothing sooner is scheduled.
  template <class First, class Other>
  void foresee(First first, Other other) const {
    if (pending_.empty()) return;
    first(pending_.front().event);
    for (const Entry& entry : pending_.seconds()) other(entry.event);
  }
  /// Moves the clock forward without an event. Requires when >= now() and no event before it.
  void advance_to(SimTime when) {
    FORESAIL_EXPECT(when >= now_);
    now_ = when;
  }
  SimTime now() const { return now_; }
  std::uint64_t taken() const { return taken_; }

 private:
  struct Entry {
    SimTime when;
    std::uint64_t sequence;
    Event event;
  };
  struct Sooner {
    bool operator()(const Entry& a, const Entry& b) const {
      return a.when != b.when ? a.when < b.when : a.sequence < b.sequence;
    }
  };
  SimTime now_{};
  std::uint64_t next_sequence_ = 0, taken_ = 0;
  QuadHeap<Entry, Sooner> pending_;
};

}  // namespace foresail::sim
