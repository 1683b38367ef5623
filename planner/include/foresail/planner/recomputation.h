/// \file
/// Which activations the backward pass makes again instead of keeping them.
#pragma once

#include <string>

#include "foresail/base/document.h"
#include "foresail/base/names.h"
#include "foresail/base/yaml.h"
#include "foresail/models/operators.h"

namespace foresail::planner {

/// Of full recomputation (Megatron-LM's --recompute-method): Uniform: every `layers` consecutive
/// layers of a chunk keep the input of the first alone; Block: the first `layers` layers of a chunk
/// (of the model without a pipeline) keep their input alone, the others everything.
enum class CheckpointMethod { Uniform, Block };

struct Recomputation {
  models::Recompute what = models::Recompute::None;
  models::RecomputeModules modules{};                   ///< of Selective
  CheckpointMethod method = CheckpointMethod::Uniform;  ///< of Full
  int layers = 1;                                       ///< of Full

  Recomputation() = default;
  /// None, the core attention, or every layer for itself.
  Recomputation(models::Recompute plain) : what(plain) {}  // NOLINT(google-explicit-constructor)
  /// Whether one of the three plain names says all.
  bool is_plain() const { return *this == Recomputation(what); }
  friend auto operator<=>(const Recomputation&, const Recomputation&) = default;
  friend bool operator==(const Recomputation&, const Recomputation&) = default;
};

/// `none`, `selective`, `full`; a list of modules (`[core_attention, norm]`), which is selective;
/// or
/// `{method: uniform|block, layers: N}`, which is full.
Recomputation read_recomputation(const Yaml& node);
Document to_document(const Recomputation& recomputation);
/// "full", "block 3", "core_attention norm".
std::string to_text(const Recomputation& recomputation);

}  // namespace foresail::planner

namespace foresail {
template <>
inline constexpr auto kNames<planner::CheckpointMethod> =
    std::to_array<Named<planner::CheckpointMethod>>({{planner::CheckpointMethod::Uniform,
                                                      "uniform"},
                                                     {planner::CheckpointMethod::Block, "block"}});
}  // namespace foresail
