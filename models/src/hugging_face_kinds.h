/// \file
/// Readers of single kinds of Hugging Face configs.
#pragma once

#include "foresail/models/model.h"

namespace foresail::models {

Model read_llama(const Yaml& node);
Model read_mistral(const Yaml& node);
Model read_qwen2(const Yaml& node);
Model read_mixtral(const Yaml& node);
Model read_qwen2_moe(const Yaml& node);
Model read_qwen3_moe(const Yaml& node);
Model read_deepseek(const Yaml& node);

}  // namespace foresail::models
