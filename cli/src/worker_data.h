/// \file
/// Who reads the training data: of the ranks on one host that load batches, the first.
#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include "foresail/runtime/node_batches.h"
#include "foresail/runtime/store.h"
#include "worker_environment.h"

namespace foresail::cli {

struct DataOptions {
  const runtime::Job* job = nullptr;
  std::filesystem::path path;  ///< as runtime::SampleOptions has it
  std::string host;            ///< of this rank; equal on the ranks that share memory
  int steps = 1;
};

/// Every rank calls it. Null on ranks that load no batch. If the data of one host cannot be read,
/// all ranks throw what its reader met.
std::unique_ptr<runtime::NodeBatches> open_data(const DataOptions& options,
                                                const RankEnvironment& environment,
                                                runtime::Store& store);

}  // namespace foresail::cli
