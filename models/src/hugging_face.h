/// \file
/// Models described by a Hugging Face config.json.
#pragma once

#include "foresail/models/model.h"

namespace foresail::models {

/// Recognised by "model_type" or "architectures".
bool is_hugging_face(const Yaml& node);

/// Sizes left 0 (kv_heads, head_size, ffn) follow from the others. Other keys of the file (token
/// ids, initialisation, inference settings) have no meaning for a training step and are skipped.
Model read_hugging_face(const Yaml& node);

}  // namespace foresail::models
