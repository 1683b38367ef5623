/// \file
/// Megatron-LM's text for which layers stand on which pipeline stage.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace foresail::scenarios {

/// One stage: a letter per part, in order: E embedding, t decoder layer, m layer that predicts one
/// more token, L loss.
using StageLetters = std::string;

/// `--pipeline-model-parallel-layout`: "Et*3|(tt|)*29,m|L" are 32 stages. `|` ends a stage, `*N`
/// repeats a letter or what stands in parentheses, commas and spaces say nothing. Throws
/// Error{InvalidInput} with the column.
std::vector<StageLetters> parse_stage_letters(std::string_view text);

}  // namespace foresail::scenarios
