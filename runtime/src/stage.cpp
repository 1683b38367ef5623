#include "stage.h"

#include <algorithm>

#include "mesh_place.h"

namespace foresail::runtime {
namespace {

/// This rank's rows of a matrix [padded vocabulary, hidden].
std::shared_ptr<Parameter> take_vocabulary(const StageScope& scope, Bucket& bucket,
                                           const std::string& name) {
  const std::int64_t hidden = scope.model->hidden;
  const std::int64_t rows = models::padded_vocab(*scope.model, scope.split->tp) / scope.split->tp;
  const auto matrix = bucket.take(name + ".weight", Spread::Sharded, {rows, hidden});
  const Block block{.first_row = scope.tp_rank * rows,
                    .rows = rows,
                    .first_column = 0,
                    .columns = hidden,
                    .total_columns = hidden};
  fill_normal(matrix->master, name, block, scope.seed, kInitialDeviation);
  // Rows that pad the vocabulary count nowhere, least of all in the norm of the matrix.
  const std::int64_t real =
      std::clamp<std::int64_t>(scope.model->vocab - scope.tp_rank * rows, 0, rows);
  matrix->master.narrow(0, real, rows - real).zero_();
  return matrix;
}

models::RankParameters parameters_of(const Job& job, int layer) {
  const models::Split& split = job.split;
  if (!models::has_experts(job.model, layer)) return models::layer_parameters(job.model, split.tp);
  return models::expert_layer_parameters(job.model, split.tp, split.ep, split.expert_tp);
}

/// Null if no layer of the chunk has experts.
std::unique_ptr<Bucket> make_expert_bucket(const Job& job, const ChunkPart& part, int shards,
                                           at::Device device) {
  std::int64_t count = 0;
  for (int layer = part.first_layer; layer < part.end_layer; ++layer) {
    count += parameters_of(job, layer).experts;
  }
  if (count == 0) return nullptr;
  return std::make_unique<Bucket>(count, shards, job.training.precision, device);
}

std::int64_t bucket_elements(const Job& job, const ChunkPart& part, bool has_own_bucket) {
  const int tp = job.split.tp;
  std::int64_t count = 0;
  for (int layer = part.first_layer; layer < part.end_layer; ++layer) {
    count += parameters_of(job, layer).total();
  }
  if (part.has_embedding()) {
    const models::RankParameters embedding =
        models::embedding_parameters(job.model, tp, job.training.sequence_length);
    count += has_own_bucket ? embedding.replicated : embedding.total();
  }
  if (part.has_head()) count += models::head_parameters(job.model, tp, false).total();
  return count;
}

}  // namespace

Chunk::Chunk(const StageScope& scope, const ChunkPart& part, const Buckets& buckets,
             std::shared_ptr<Parameter> tied)
    : scope_(scope), part_(part) {
  Bucket& bucket = *buckets.common;
  if (part.has_embedding()) add_embedding(bucket, tied);
  for (int layer = part.first_layer; layer < part.end_layer; ++layer) {
    layers_.push_back(
        register_module("layer" + std::to_string(layer),
                        std::make_shared<TransformerLayer>(scope, bucket, buckets.experts, layer)));
  }
  if (part.has_head()) add_head(bucket, tied);
  FORESAIL_EXPECT(bucket.is_full());
  if (buckets.experts != nullptr) FORESAIL_EXPECT(buckets.experts->is_full());
}

void Chunk::add_embedding(Bucket& bucket, const std::shared_ptr<Parameter>& tied) {
  EmbeddingLayer::Options options;
  words_ = tied != nullptr ? tied : take_vocabulary(scope_, bucket, "words");
  options.words = words_;
  const models::Model& model = *scope_.model;
  if (model.positions == models::Positions::Learned) {
    const std::int64_t rows =
        model.max_positions > 0 ? model.max_positions : scope_.split->sequence_length;
    options.positions = bucket.take("positions.weight", Spread::Replicated, {rows, model.hidden});
    const Block block{.first_row = 0,
                      .rows = rows,
                      .first_column = 0,
                      .columns = model.hidden,
                      .total_columns = model.hidden};
    fill_normal(options.positions->master, "positions", block, scope_.seed, kInitialDeviation);
  }
  embedding_ = register_module("embedding", std::make_shared<EmbeddingLayer>(scope_, options));
}

void Chunk::add_head(Bucket& bucket, const std::shared_ptr<Parameter>& tied) {
  final_norm_ =
      register_module("final_norm", make_norm(scope_, bucket, "final_norm", "final_norm"));
  ColumnLinear::Options options;
  options.kernel = "head";
  if (scope_.model->tied_embeddings) {
    options.weight = tied != nullptr ? tied : words_;
  } else {
    options.weight = take_vocabulary(scope_, bucket, "head");
  }
  FORESAIL_EXPECT(options.weight != nullptr);
  head_ = register_module("head", std::make_shared<ColumnLinear>(scope_, options));
  loss_ = register_module("loss", std::make_shared<CrossEntropy>(scope_));
}

at::Tensor Chunk::forward(const at::Tensor& input, const at::Tensor& targets) {
  at::Tensor x = embedding_ != nullptr ? embedding_->forward(input) : input;
  for (const auto& layer : layers_) x = layer->forward(x);
  if (head_ == nullptr) return x;
  return loss_->forward(head_->forward(final_norm_->forward(x)), targets);
}

Stage::Stage(const Job& job, RankId rank, at::Device device) {
  const program::Coordinates at = job.program.grid.coordinates(rank);
  const auto axis = [&](program::Axis a) { return at[static_cast<std::size_t>(a)]; };
  const MeshPlace place = MeshPlace::of(job.program, rank);
  const int dp = place.shards;
  scope_.device = device;
  scope_.model = &job.model;
  scope_.split = &job.split;
  scope_.seed = job.seed;
  scope_.global_batch_size = job.training.global_batch_size;
  scope_.tp_rank = axis(program::Axis::Tp);
  scope_.cp_rank = axis(program::Axis::Cp);
  if (job.model.dropout) {
    scope_.channels = DropoutElements(at::arange(job.model.hidden, at::kLong), device);
  }
  scope_.experts = place.experts;
  scope_.tables = make_attention_tables(job.model, job.split, axis(program::Axis::Cp), device);
  const std::vector<ChunkPart>& parts =
      job.parts.at(static_cast<std::size_t>(axis(program::Axis::Pp)));
  FORESAIL_EXPECT(static_cast<int>(parts.size()) == job.program.chunks);
  const bool has_own_bucket = job.model.tied_embeddings &&
                              (job.program.grid.size(program::Axis::Pp) > 1 || parts.size() > 1);
  std::shared_ptr<Parameter> tied;
  const bool has_end = std::ranges::any_of(
      parts, [](const ChunkPart& part) { return part.has_embedding() || part.has_head(); });
  if (has_own_bucket && has_end) {
    const std::int64_t rows = models::padded_vocab(job.model, job.split.tp) / job.split.tp;
    embedding_bucket_ =
        std::make_unique<Bucket>(rows * job.model.hidden, dp, job.training.precision, device);
    tied = take_vocabulary(scope_, *embedding_bucket_, "words");
  }
  for (const ChunkPart& part : parts) {
    buckets_.push_back(std::make_unique<Bucket>(bucket_elements(job, part, has_own_bucket), dp,
                                                job.training.precision, device));
    expert_buckets_.push_back(make_expert_bucket(job, part, place.experts.shards, device));
    const Chunk::Buckets buckets{buckets_.back().get(), expert_buckets_.back().get()};
    chunks_.push_back(std::make_shared<Chunk>(scope_, part, buckets, tied));
  }
}

std::vector<Bucket*> Stage::all_buckets() {
  std::vector<Bucket*> all;
  for (const auto& bucket : buckets_) all.push_back(bucket.get());
  if (embedding_bucket_ != nullptr) all.push_back(embedding_bucket_.get());
  return all;
}

}  // namespace foresail::runtime
