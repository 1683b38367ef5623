/// \file
/// Ops of a Program as text, for tests that name them.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "foresail/program/program.h"

namespace foresail::planner {

/// The ops of one lane of one stage, described.
inline std::vector<std::string> lane(const program::Program& program, std::size_t stage,
                                     Lane lane) {
  std::vector<std::string> lines;
  for (const program::Op& op : program.stages[stage].ops) {
    if (op.lane == lane) lines.push_back(program::describe(op));
  }
  return lines;
}

/// The first op so described.
inline program::OpId find(const program::Program& program, std::size_t stage,
                          const std::string& description) {
  const auto& ops = program.stages[stage].ops;
  for (std::uint32_t at = 0; at < ops.size(); ++at) {
    if (program::describe(ops[program::OpId{at}]) == description) return program::OpId{at};
  }
  ADD_FAILURE() << "no op " << description;
  return {};
}

inline const program::Op& op(const program::Program& program, std::size_t stage,
                             const std::string& description) {
  return program.stages[stage].ops[find(program, stage, description)];
}

/// What `description` waits for, described.
inline std::vector<std::string> awaited(const program::Program& program, std::size_t stage,
                                        const std::string& description) {
  std::vector<std::string> lines;
  for (const program::OpId id : op(program, stage, description).after) {
    lines.push_back(program::describe(program.stages[stage].ops[id]));
  }
  return lines;
}

}  // namespace foresail::planner
