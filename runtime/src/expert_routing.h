/// \file
/// Which expert gets which token, and which rank therefore sends how many rows to which other.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <vector>

#include "foresail/models/model.h"
#include "mesh_place.h"

namespace foresail::runtime {

/// Where the `per_token` copies of T tokens go. A copy is token * per_token + slot, the slots of a
/// token in falling order of probability. Rows stand by expert, and within one by copy.
struct Routing {
  at::Tensor probabilities;     ///< [T, experts], softmax over all experts
  at::Tensor weights, experts;  ///< [T, per_token], chosen; the weight of a dropped copy is 0
  at::Tensor is_kept;           ///< [T, per_token], 0 or 1; undefined: all are kept
  at::Tensor copy;              ///< [rows] which one a row is, -1: padding
  at::Tensor row;               ///< [T * per_token] of each copy, -1: dropped
  at::Tensor counts;            ///< [experts] rows of each
  std::int64_t capacity = 0;    ///< what they all are; 0: they follow from the data

  /// [T, h] -> [rows, h]; the same from copies [T * per_token, h]; and what came back ->
  /// [T, per_token, h].
  at::Tensor tokens_to_rows(const at::Tensor& tokens) const;
  at::Tensor copies_to_rows(const at::Tensor& copies) const;
  at::Tensor rows_to_copies(const at::Tensor& rows) const;
};

/// Weights are the chosen experts' probabilities, as they are (Switch Transformer 2021, GShard
/// 2020). With a capacity factor every expert gets exactly ceil(factor * T * per_token / count)
/// rows: later copies are dropped, missing ones padded with zeros.
Routing route(const models::Experts& experts, const at::Tensor& logits);

/// How many copies of each sample's tokens chose each expert, [samples, experts], fp32. A token's
/// row is position * samples + sample.
at::Tensor count_by_sample(const Routing& routing, std::int64_t samples);

/// Gradient of the balance loss of models::Experts, a mean over the global batch, with respect to
/// the probabilities, [T, experts]: alpha * count / (per_token * S^2 * global batch) times `counts`
/// of the whole sequences, of S tokens each.
struct BalanceOptions {
  const models::Experts* experts = nullptr;
  std::int64_t sequence_length = 1;
  std::int64_t global_batch_size = 1;
};
at::Tensor balance_gradient(const BalanceOptions& options, const at::Tensor& counts,
                            std::int64_t tokens);

/// Who sends how many rows to whom in one layer. Experts lie in blocks of equal size on the ranks
/// of ep; expert tensor parallelism gathers the rows of all its ranks.
struct RowExchange {
  std::vector<std::int64_t> sends, receives;  ///< by rank of ep
  std::int64_t received = 0;                  ///< by this rank
  std::int64_t padded = 0;  ///< most that a rank of expert tp receives: what each of them gathers
  std::vector<std::int64_t> rows_of_expert;  ///< of those on this rank
  /// Places of the rows, by expert, among those gathered; undefined if they are in order.
  at::Tensor order;

  std::int64_t rows() const;
};

/// `counts` [ranks of ep and expert tp, experts], in host memory, by place in the group that
/// exchanges counts. `order` is made in host memory too.
RowExchange plan_exchange(const ExpertPlace& place, const at::Tensor& counts);

}  // namespace foresail::runtime
