#include "water_fill.h"

#include <algorithm>

namespace foresail::sim {

void WaterFill::clear() {
  variables_.clear();
  entries_.clear();
  constraints_.clear();
  ++stamp_;
}

void WaterFill::add(double count, double cap) {
  variables_.push_back({static_cast<std::uint32_t>(entries_.size()), count, cap});
}

void WaterFill::load(std::uint32_t constraint, double capacity, double weight) {
  if (constraint >= local_of_.size()) {
    local_of_.resize(constraint + 1);
    stamp_of_.resize(constraint + 1, 0);
  }
  if (stamp_of_[constraint] != stamp_) {
    stamp_of_[constraint] = stamp_;
    local_of_[constraint] = static_cast<std::uint32_t>(constraints_.size());
    Constraint made;
    made.name = constraint;
    made.capacity = capacity;
    constraints_.push_back(made);
  }
  const std::uint32_t local = local_of_[constraint];
  ++constraints_[local].users;
  constraints_[local].free_weight += variables_.back().count * weight;
  entries_.push_back({local, weight});
}

std::uint32_t WaterFill::end_of(std::uint32_t variable) const {
  return variable + 1 < variables_.size() ? variables_[variable + 1].begin
                                          : static_cast<std::uint32_t>(entries_.size());
}

double WaterFill::level_of(const Constraint& constraint) const {
  return std::max(0.0, constraint.capacity - constraint.fixed) / constraint.free_weight;
}

void WaterFill::group_users() {
  std::uint32_t at = 0;
  for (Constraint& constraint : constraints_) {
    constraint.begin = at;
    at += constraint.users;
    constraint.free_users = 0;
  }
  users_.resize(entries_.size());
  for (std::uint32_t v = 0; v < variables_.size(); ++v) {
    for (std::uint32_t e = variables_[v].begin; e < end_of(v); ++e) {
      Constraint& constraint = constraints_[entries_[e].local];
      users_[constraint.begin + constraint.free_users++] = v;
    }
  }
}

void WaterFill::freeze(std::uint32_t variable, double level, std::uint32_t constraint) {
  answers_[variable] = {level, constraint};
  const double count = variables_[variable].count;
  for (std::uint32_t e = variables_[variable].begin; e < end_of(variable); ++e) {
    Constraint& loaded = constraints_[entries_[e].local];
    loaded.fixed += count * entries_[e].weight * level;
    loaded.free_weight -= count * entries_[e].weight;
    --loaded.free_users;
  }
}

std::span<const WaterFill::Answer> WaterFill::solve() {
  group_users();
  answers_.assign(variables_.size(), Answer{});
  keys_.clear();
  for (std::uint32_t c = 0; c < constraints_.size(); ++c) {
    keys_.push_back({level_of(constraints_[c]), c});
  }
  std::make_heap(keys_.begin(), keys_.end(), higher);
  caps_.clear();
  for (std::uint32_t v = 0; v < variables_.size(); ++v) caps_.push_back({variables_[v].cap, v});
  std::ranges::sort(caps_, [](const Key& a, const Key& b) { return higher(b, a); });
  auto cap = caps_.cbegin();
  while (!keys_.empty() || cap != caps_.cend()) {
    if (cap != caps_.cend() && (keys_.empty() || cap->level <= keys_.front().level)) {
      if (answers_[cap->id].level < 0) freeze(cap->id, cap->level, kOwnCap);
      ++cap;
      continue;
    }
    std::pop_heap(keys_.begin(), keys_.end(), higher);
    const Key key = keys_.back();
    keys_.pop_back();
    Constraint& constraint = constraints_[key.id];
    if (constraint.free_users == 0) continue;
    const double level = level_of(constraint);
    if (level > key.level) {  // keys only grow
      keys_.push_back({level, key.id});
      std::push_heap(keys_.begin(), keys_.end(), higher);
      continue;
    }
    for (std::uint32_t u = constraint.begin; u < constraint.begin + constraint.users; ++u) {
      if (answers_[users_[u]].level < 0) freeze(users_[u], level, constraint.name);
    }
  }
  return answers_;
}

}  // namespace foresail::sim
