/// \file
/// Max-min fair levels of many variables from scratch, on flat arrays that are kept between calls.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace foresail::sim {

/// Progressive filling with a heap of constraint levels: O(E log C) for E entries on C constraints
/// (facts: a level only grows while variables freeze, so stale keys are refreshed lazily).
/// Variables of equal entries are given once with their number. The answer depends on the order of
/// add() and the numbers alone.
class WaterFill {
 public:
  /// Constraint of a variable that reached its cap.
  static constexpr std::uint32_t kOwnCap = ~0u;
  struct Answer {
    double level = -1;
    std::uint32_t constraint = kOwnCap;
  };

  void clear();
  /// A variable that stands for `count` equal ones, each at most `cap`.
  void add(double count, double cap);
  /// The last added variable loads `constraint`, of `capacity`, with `weight` times its level.
  void load(std::uint32_t constraint, double capacity, double weight);
  /// One answer per variable, in the order of add(). Valid until clear().
  std::span<const Answer> solve();

 private:
  struct Entry {
    std::uint32_t local;
    double weight;  // of one
  };
  struct Variable {
    std::uint32_t begin = 0;
    double count = 1, cap = 0;
  };
  struct Constraint {
    std::uint32_t name = 0;
    std::uint32_t users = 0, begin = 0, free_users = 0;
    double capacity = 0, fixed = 0, free_weight = 0;
  };
  struct Key {
    double level;
    std::uint32_t id;
  };
  static bool higher(const Key& a, const Key& b) {
    return a.level != b.level ? a.level > b.level : a.id > b.id;
  }
  std::uint32_t end_of(std::uint32_t variable) const;
  double level_of(const Constraint& constraint) const;
  void group_users();
  void freeze(std::uint32_t variable, double level, std::uint32_t constraint);

  std::vector<Variable> variables_;
  std::vector<Entry> entries_;
  std::vector<Constraint> constraints_;
  std::vector<std::uint32_t> users_;  // variables, by constraint
  std::vector<Key> keys_, caps_;
  std::vector<Answer> answers_;
  std::vector<std::uint32_t> local_of_;  // by constraint name; holds if stamp_of_ is stamp_
  std::vector<std::uint64_t> stamp_of_;
  std::uint64_t stamp_ = 0;
};

}  // namespace foresail::sim
