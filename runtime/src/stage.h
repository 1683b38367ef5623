/// \file
/// What one rank holds of the model: its chunks as torch modules, and their buckets.
#pragma once

#include <memory>
#include <vector>

#include "cross_entropy.h"
#include "embedding.h"
#include "foresail/runtime/job.h"
#include "transformer_layer.h"

namespace foresail::runtime {

/// One chunk as a module: [embedding] layers [final norm, output layer, loss].
class Chunk : public torch::nn::Module {
 public:
  struct Buckets {
    Bucket* common = nullptr;
    Bucket* experts = nullptr;  ///< of the routed experts; null if there are none
  };
  /// `tied` is the word matrix if it is a bucket of its own, else null. Takes exactly the elements
  /// that the buckets have.
  Chunk(const StageScope& scope, const ChunkPart& part, const Buckets& buckets,
        std::shared_ptr<Parameter> tied);

  /// `input`: tokens [T] if the chunk has the embedding, else activations. `targets` [T] are read
  /// only by a chunk with the head, whose output is the mean loss (0-dim, double).
  at::Tensor forward(const at::Tensor& input, const at::Tensor& targets);

  const ChunkPart& part() const { return part_; }

 private:
  void add_embedding(Bucket& bucket, const std::shared_ptr<Parameter>& tied);
  void add_head(Bucket& bucket, const std::shared_ptr<Parameter>& tied);

  const StageScope& scope_;
  ChunkPart part_;
  std::shared_ptr<Parameter> words_;
  std::shared_ptr<EmbeddingLayer> embedding_;
  std::vector<std::shared_ptr<TransformerLayer>> layers_;
  std::shared_ptr<NormLayer> final_norm_;
  std::shared_ptr<ColumnLinear> head_;
  std::shared_ptr<CrossEntropy> loss_;
};

/// All chunks of one rank. Weights depend on job.seed, names and global shapes alone.
class Stage {
 public:
  Stage(const Job& job, RankId rank, at::Device device = at::kCPU);
  Stage(const Stage&) = delete;
  Stage& operator=(const Stage&) = delete;

  StageScope& scope() { return scope_; }
  std::size_t chunk_count() const { return chunks_.size(); }
  Chunk& chunk(int index) { return *chunks_[static_cast<std::size_t>(index)]; }
  Bucket& bucket(int chunk) { return *buckets_[static_cast<std::size_t>(chunk)]; }
  /// The chunk's routed experts; or null.
  Bucket* expert_bucket(int chunk) {
    return expert_buckets_[static_cast<std::size_t>(chunk)].get();
  }
  /// The tied word matrix where it is a bucket of its own; or null.
  Bucket* embedding_bucket() { return embedding_bucket_.get(); }
  /// The chunks' buckets, then the embedding's.
  std::vector<Bucket*> all_buckets();

 private:
  StageScope scope_;
  std::vector<std::unique_ptr<Bucket>> buckets_, expert_buckets_;
  std::unique_ptr<Bucket> embedding_bucket_;
  std::vector<std::shared_ptr<Chunk>> chunks_;  // torch modules are handled by shared_ptr
};

}  // namespace foresail::runtime
