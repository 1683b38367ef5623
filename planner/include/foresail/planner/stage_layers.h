/// \file
/// How the layers, the embedding and the head are dealt to the global stages.
#pragma once

#include <vector>

#include "foresail/base/document.h"
#include "foresail/base/yaml.h"
#include "foresail/models/model.h"

namespace foresail::planner {

/// Even if nothing is set. Megatron-LM's options (arguments.py; facts: uneven stages): the first or
/// last pipeline stage has that many layers in all its chunks together and the others share the
/// rest (--decoder-first-pipeline-num-layers, --decoder-last-pipeline-num-layers); or embedding or
/// loss counts as one layer of the global stage that holds it
/// (--account-for-embedding-in-pipeline-split, --account-for-loss-in-pipeline-split). Or the number
/// of layers of every global stage: 0 only for the first (the embedding alone) and for the last
/// (final norm, output layer and loss alone).
struct StageLayers {
  std::vector<int> each;    ///< by global stage; empty: by the rules below
  int first = 0, last = 0;  ///< layers of the first and the last stage; 0: like the others
  bool account_for_embedding = false, account_for_loss = false;

  bool is_even() const { return *this == StageLayers{}; }
  friend auto operator<=>(const StageLayers&, const StageLayers&) = default;
  friend bool operator==(const StageLayers&, const StageLayers&) = default;
};

/// `even`, `account_for_embedding`, `account_for_loss`, `account_for_both`; a list of numbers; or a
/// mapping of `first_stage_layers`, `last_stage_layers`, `account_for_embedding`,
/// `account_for_loss`.
StageLayers read_stage_layers(const Yaml& node);
Document to_document(const StageLayers& layers);
/// "even", "account_for_loss", "[3, 4, 4, 1]", "first_stage_layers 3".
std::string to_text(const StageLayers& layers);

}  // namespace foresail::planner
