/// \file
/// Parts of a model that are mappings of their own in our schema.
#pragma once

#include "foresail/models/model.h"

namespace foresail::models {

/// Keys of `node` over the values given.
Experts read_experts(const Yaml& node, Experts experts);
LatentAttention read_latent(const Yaml& node, LatentAttention latent);

/// Sizes that follow from others unless given.
void derive_expert_sizes(Model& model);

Document to_document(const Experts& experts);
Document to_document(const LatentAttention& latent);

}  // namespace foresail::models
