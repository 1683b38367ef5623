/// \file
/// What the ranks of a job run in one step, and what the Program says that they should.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "thread_job.h"

namespace foresail::testing {

/// batch, m, n, k
using GemmShape = std::tuple<std::int64_t, std::int64_t, std::int64_t, std::int64_t>;

/// What one rank did in one step.
struct Observed {
  std::vector<GemmShape> gemms;  ///< sorted; those of fused attention are its own affair
  double attention_flops = 0;    ///< of products within fused attention
  std::map<Lane, std::vector<program::OpId>> executed;
  std::string digest;
};

/// One step of `job`, by rank.
std::map<RankId, Observed> observe_step(const runtime::Job& job);
Observed expected_of(const runtime::Job& job, RankId rank);

/// One step of `job`: every rank runs the ops and the GEMMs of the Program.
void expect_step_of_program(const runtime::Job& job);

}  // namespace foresail::testing
