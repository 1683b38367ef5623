/// \file
/// A model's weights as one safetensors file with the names and shapes of Hugging Face's GPT-2 or
/// Llama, independent of how ranks shared them: what is trained here opens there, and the other way
/// round.
#pragma once

#include <filesystem>

#include "foresail/base/document.h"
#include "foresail/runtime/job.h"

namespace foresail::runtime {

enum class Architecture { Gpt2, Llama };

/// Which of the two this model is. GPT-2: learned positions, layer norm, gelu, biases, as many KV
/// heads as heads of hidden / heads. Llama: rotary positions, RMS norm, SwiGLU, no biases; KV heads
/// may be fewer. Both: serial block, full attention, dense. Throws Error{Unsupported} with the keys
/// that fit neither.
Architecture architecture_of(const models::Model& model);

/// config.json of the model, for transformers' AutoModelForCausalLM and for `model:` of a scenario.
/// `sequence_length` stands for the positions of a model without a table of its own.
Document hugging_face_config(const models::Model& model, std::int64_t sequence_length);

/// Makes `path` with a header and room for all tensors, to be filled by Trainer::write_weights of
/// every rank. Throws Error{Io}.
void create_weights(const std::filesystem::path& path, const models::Model& model,
                    std::int64_t sequence_length);

/// Whether every tensor of the model is in the file, in its shape, and nothing else; the prefix
/// "transformer." may be absent, buffers of attention masks may be there. Throws
/// Error{InvalidInput} with the first that is not so.
void check_weights(const std::filesystem::path& path, const models::Model& model,
                   std::int64_t sequence_length);

}  // namespace foresail::runtime

namespace foresail {
template <>
inline constexpr auto kNames<runtime::Architecture> = std::to_array<Named<runtime::Architecture>>(
    {{runtime::Architecture::Gpt2, "gpt2"}, {runtime::Architecture::Llama, "llama"}});
}  // namespace foresail
