/// \file
/// Parameters and gradients of one bucket in flat buffers, so that one collective moves a whole
/// bucket and the optimizer walks one array. Parameters have the training's number format, their
/// masters and gradients fp32.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "foresail/base/dtype.h"

namespace foresail::runtime {

/// How a parameter stands on the ranks of a tensor-parallel group.
enum class Spread { Sharded, Replicated };

/// A piece of a flat buffer, in elements.
struct Extent {
  std::int64_t first = 0, count = 0;
};
/// What both have; of no element if there is nothing.
Extent overlap(const Extent& a, const Extent& b);

/// One tensor of a bucket. `value`, `master` and `grad` are views into the bucket's buffers.
struct Parameter {
  std::string name;
  Spread spread = Spread::Sharded;
  std::int64_t offset = 0;  ///< in elements of the bucket
  /// Equal matrices that lie one behind the other: one of each expert.
  std::int64_t stacked = 1;
  at::Tensor value;
  at::Tensor master;  ///< fp32; there while Bucket::masters() is
  at::Tensor grad;

  /// Weights, which decay and which LAMB scales; biases and norms are none.
  bool is_matrix() const;
  /// In elements of the bucket.
  Extent extent() const { return {offset, value.numel()}; }
  /// Of each of its matrices; none if it is a bias or a norm.
  std::vector<Extent> matrices() const;
};

/// A block of rows and columns of a global matrix.
struct Block {
  std::int64_t first_row = 0, rows = 0;
  std::int64_t first_column = 0, columns = 0;
  std::int64_t total_columns = 0;
};

/// Fills `target` [rows, columns] with the block of the global normal matrix `name`. Row r is drawn
/// from the stream (name, r) of `seed`: whatever the layout and device, the global matrix is the
/// same, since the host draws it.
void fill_normal(const at::Tensor& target, const std::string& name, const Block& block,
                 std::uint64_t seed, double deviation);

/// The parameters that are reduced and updated together. Padded with zeros to a multiple of
/// `shards`, the data-parallel ranks that may hold a part each (ZeRO).
class Bucket {
 public:
  /// Of `elements` on `device`.
  Bucket(std::int64_t elements, int shards, DType dtype, at::Device device = at::kCPU);

  /// The next parameter of the bucket. Requires room for it.
  std::shared_ptr<Parameter> take(const std::string& name, Spread spread,
                                  const std::vector<std::int64_t>& shape);
  /// Whether every element has been taken.
  bool is_full() const { return taken_ == elements_; }

  std::int64_t elements() const { return elements_; }
  std::int64_t padded() const { return values_.numel(); }
  at::Tensor& values() { return values_; }
  /// All parameters in fp32, for whoever fills them: values() itself in fp32. Else a copy that a
  /// new bucket has until drop_masters().
  at::Tensor& masters() { return masters_; }
  void make_masters();  ///< zeros
  void drop_masters();
  at::Tensor& grads() { return grads_; }
  /// Part `shard` of `flat`, a buffer of this bucket's padded size.
  at::Tensor shard_of(const at::Tensor& flat, int shard) const;
  const std::vector<std::shared_ptr<Parameter>>& parameters() const { return parameters_; }

 private:
  std::int64_t elements_ = 0;
  std::int64_t taken_ = 0;
  int shards_ = 1;
  at::Tensor values_, masters_, grads_;
  std::vector<std::shared_ptr<Parameter>> parameters_;  // shared with the modules that use them
};

}  // namespace foresail::runtime
