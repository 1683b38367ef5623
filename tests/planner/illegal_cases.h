/// \file
/// Laws of layouts, written a second time as predicates over one drawn case, and how to break each.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "foresail/base/rng.h"
#include "foresail/planner/layout.h"

namespace foresail::planner::illegal {

struct Case {
  models::Model model;
  Layout layout;
  program::Training training;
  int devices = 1;

  std::vector<BrokenLaw> check() const { return check_laws(model, layout, training, devices); }
  std::string key() const {
    return to_document(layout).dump() + std::to_string(model.layers) + "/" +
           std::to_string(model.heads) + "/" + std::to_string(model.kv_heads) + "/" +
           std::to_string(model.ffn) + "/" + std::to_string(model.vocab) + "/" +
           std::to_string(training.global_batch_size) + "/" +
           std::to_string(training.sequence_length) + "/" + std::to_string(devices);
  }
};

class Draw {
 public:
  explicit Draw(std::uint64_t index) : stream_(Rng(20261130).stream("illegal", index)) {}
  int between(int low, int high) {
    return low + static_cast<int>(stream_.below(static_cast<std::uint64_t>(high - low + 1)));
  }
  /// 1 to whole - 1, or 0 if there is nothing between.
  int part_of(int whole) { return whole > 1 ? between(1, whole - 1) : 0; }
  bool coin() { return stream_.below(2) == 0; }
  template <class T>
  T of(std::initializer_list<T> choices) {
    return *(choices.begin() + stream_.below(choices.size()));
  }

 private:
  RandomStream stream_;
};

using Terms = std::vector<std::int64_t>;

/// `breaks` may rely on all degrees and sizes being at least 1; `terms` are numbers that the
/// message must have; `push` takes a legal case to one that breaks it.
struct Law {
  std::string name;
  std::function<bool(const Case&)> breaks;
  std::function<Terms(const Case&)> terms;
  std::function<void(Case&, Draw&)> push;
};

std::vector<Law> laws_of_the_model();
std::vector<Law> laws_of_the_schedule();

/// Ranks that reduce gradients together.
inline int shard_ranks(const Case& c) {
  return c.layout.dp * c.layout.cp;
}
inline bool is_dualpipe(const Case& c) {
  return c.layout.schedule == ScheduleKind::DualPipe;
}
/// Parts that the layers are dealt to per stage: copies are no second part.
inline int chunks(const Case& c) {
  return c.layout.pp > 1 && is_dualpipe(c) ? 1 : c.layout.v;
}

}  // namespace foresail::planner::illegal
