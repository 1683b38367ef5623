/// \file
/// One reader per node: one rank reads the samples of all ranks of its node ahead of time into
/// memory that they share.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "foresail/base/id.h"
#include "foresail/runtime/job.h"
#include "foresail/runtime/sample_source.h"

namespace foresail::runtime {

/// Whether the Program lets this rank load batches: its stage has the embedding or the head.
bool loads_batches(const program::Program& program, RankId rank);

/// Two steps' samples of the data-parallel replicas that stand on the node, each once, in
/// anonymous shared memory (memfd): nothing is left behind, whoever dies. While the ranks compute
/// a step a thread of the reader fills in the next one; a slot is filled again when all ranks have
/// taken their samples from it.
class NodeBatches : public BatchSource {
 public:
  struct Options {
    const Job* job = nullptr;   ///< must outlive the object
    RankId rank;                ///< this one
    std::vector<RankId> ranks;  ///< those of this node that load batches, ascending
    int steps = 1;              ///< that will be loaded
  };
  /// This rank reads for its node. What fails in the thread is thrown by every rank's `load` of the
  /// step that needed it.
  static std::unique_ptr<NodeBatches> serve(const Options& options,
                                            std::unique_ptr<SampleSource> samples);
  /// Another rank of the node, with the reader's handle(). Throws Error{Device} if the memory
  /// cannot be mapped.
  static std::unique_ptr<NodeBatches> attach(const Options& options, const std::string& handle);

  ~NodeBatches() override;
  void load(int step, std::span<const std::int64_t> indices,
            std::span<std::int32_t> tokens) override;
  /// How other processes of the node find the memory; as long as this object lives.
  std::string handle() const;

 private:
  struct Impl;
  explicit NodeBatches(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace foresail::runtime
