/// \file
/// The laws of zero-bubble, mirrored and written schedules, and of aligned launches.
#pragma once

#include <cstdint>
#include <vector>

#include "foresail/planner/layout.h"

namespace foresail::planner {

/// Whether the schedule itself says how many chunks a rank holds.
bool has_own_chunks(const Layout& layout);
/// Laws on stages and chunks.
std::vector<BrokenLaw> check_zero_bubble(const Layout& layout);
/// Laws of overlap.aligned.
std::vector<BrokenLaw> check_alignment(const Layout& layout);
/// Laws on the microbatches per replica.
std::vector<BrokenLaw> check_microbatches(const Layout& layout, std::int64_t microbatches);

}  // namespace foresail::planner
