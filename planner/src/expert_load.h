/// \file
/// How routed tokens spread over experts: measured counts, shares, or evenly.
#pragma once

#include <vector>

#include "foresail/base/document.h"
#include "foresail/base/yaml.h"

namespace foresail::planner {

using ExpertLoad = std::vector<std::vector<double>>;

/// `uniform`; a list of shares or counts, one per expert; a list of such lists, one per layer with
/// experts; or `{file: PATH}` of counts, one line per row, separated by commas (# starts a
/// comment). Rows are divided by their sums unless those are 1 already. Throws Error{InvalidInput}
/// with file, line and key.
ExpertLoad read_expert_load(const Yaml& node);
Document to_document(const ExpertLoad& load);

}  // namespace foresail::planner
