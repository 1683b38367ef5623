/// \file
/// Small Programs made by hand for tests: real schedules with their messages, gradient
/// synchronisation and optimizer, written without the planner.
#pragma once

#include <string>
#include <vector>

#include "foresail/program/program.h"

namespace foresail::program {

struct PassSlot {
  Pass pass = Pass::Forward;
  int microbatch = 0;
  int chunk = 0;
};

struct Shape {
  int stages = 2;
  int chunks = 1;
  int microbatches = 4;
  int replicas = 2;  // dp
};

/// Passes of one stage in 1F1B order (one chunk): min(p - r - 1, m) forwards, then pairs.
std::vector<PassSlot> one_forward_one_backward(const Shape& shape, int stage);
/// All forwards, then all backwards.
std::vector<PassSlot> gpipe(const Shape& shape);

/// How messages are queued.
enum class Queueing {
  GlobalOrder,  // one pp lane, ordered by the simulated time at which messages are produced
  Blocking      // receive, compute, send in one lane
};

/// A Program whose stage s runs `order[s]`.
Program make_program(const Shape& shape, const std::vector<std::vector<PassSlot>>& order,
                     Queueing queueing = Queueing::GlobalOrder);
Program make_1f1b(const Shape& shape, Queueing queueing = Queueing::GlobalOrder);

/// The first op of `stage` whose description is `description`; the test fails if there is none.
OpId find_op(const Program& program, int stage, const std::string& description);
/// `program` without that op; what came after it no longer does.
Program without(Program program, int stage, const std::string& description);
/// Mutable access, which IdVector gives through non-const operator[].
Op& op_at(Program& program, int stage, const std::string& description);

}  // namespace foresail::program
