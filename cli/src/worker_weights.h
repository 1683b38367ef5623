/// \file
/// Weights of a run, in and out (runtime/weights.h).
#pragma once

#include <filesystem>

#include "foresail/runtime/store.h"
#include "foresail/runtime/trainer.h"
#include "worker_environment.h"

namespace foresail::cli {

/// `path`, or model.safetensors in it if it is a folder.
std::filesystem::path weights_file(const std::filesystem::path& path);

/// What stands in `folder` until the weights are whole.
std::filesystem::path unfinished_weights(const std::filesystem::path& folder);

/// Every rank calls it with the folder, which all must see. They write their parts of
/// model.safetensors; rank 0 adds config.json. The file appears when it is whole.
void save_weights(const std::filesystem::path& folder, const runtime::Job& job,
                  runtime::Trainer& trainer, const RankEnvironment& environment,
                  runtime::Store& store);

}  // namespace foresail::cli
