/// \file
/// What the texts of a search share.
#pragma once

#include <string>

#include "foresail/scenarios/search.h"

namespace foresail::scenarios {

/// Of the objective: "s", "EUR per step".
std::string unit_of(const SearchRequest& request);
/// What each law and memory rejected, with an example.
std::string rejected_text(const planner::SearchOutcome& outcome);

}  // namespace foresail::scenarios
