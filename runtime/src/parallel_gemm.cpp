#include "parallel_gemm.h"

#include "foresail/models/row_slices.h"

namespace foresail::runtime {
namespace {

using models::part_name;
using models::RowSlice;

bool is_cut(const StageScope& scope, const ParallelGemm& gemm) {
  return gemm.is_pipelined && scope.split->overlap_tp && scope.split->tp > 1;
}

/// A slice of every rank's shard, [ranks, rows, columns] of a tensor of all tokens.
at::Tensor slice_of_shards(const at::Tensor& whole, int ranks, const RowSlice& slice) {
  return whole.view({ranks, whole.size(0) / ranks, whole.size(1)})
      .narrow(1, slice.first, slice.rows);
}

/// Its rows one below the other: a copy, unless they lie so.
at::Tensor rows_of(const at::Tensor& slice) {
  return slice.reshape({slice.size(0) * slice.size(1), slice.size(2)});
}

/// What the ranks but one have of `slice`, in their order.
std::vector<at::Tensor> without(const at::Tensor& slice, int rank) {
  std::vector<at::Tensor> others;
  const std::int64_t behind = slice.size(0) - rank - 1;
  if (rank > 0) others.push_back(slice.narrow(0, 0, rank));
  if (behind > 0) others.push_back(slice.narrow(0, rank + 1, behind));
  return others;
}

at::Tensor new_rows(const at::Tensor& like, std::int64_t rows, std::int64_t columns) {
  return at::empty({rows, columns}, like.options());
}

/// The gathers of one tensor's slices.
class SliceGathers {
 public:
  SliceGathers(const StageScope& scope, const ParallelGemm& gemm, const at::Tensor& shard)
      : op_(scope.context()),
        gemm_(gemm),
        shard_(shard.contiguous()),
        slices_(models::gathered_slices(shard.size(0))),
        made_{.result = new_rows(shard, op_.tp_size() * shard.size(0), gemm.columns),
              .whole = new_rows(shard, op_.tp_size() * shard.size(0), shard.size(1))} {}

  GatheredProduct run() {
    const std::size_t count = slices_.size() + 1;
    std::vector<Pending> gathers;
    for (std::size_t i = 1; i < count; ++i) gathers.push_back(start(i));
    op_.compute(name_of(gemm_.kernel, 0), [&] {
      gemm_.multiply(made_.result.narrow(0, op_.tp_rank() * shard_.size(0), shard_.size(0)),
                     shard_);
    });
    for (std::size_t i = 1; i < count; ++i) {
      gathers[i - 1].wait();
      op_.compute(name_of(gemm_.kernel, i), [&] { multiply_others(slices_[i - 1]); });
    }
    return made_;
  }

 private:
  std::string name_of(const std::string& whole, std::size_t part) const {
    return part_name(whole, static_cast<int>(part), static_cast<int>(slices_.size()) + 1);
  }

  Pending start(std::size_t part) {
    const RowSlice& slice = slices_[part - 1];
    const at::Tensor target = slice_of_shards(made_.whole, op_.tp_size(), slice);
    const at::Tensor input = shard_.narrow(0, slice.first, slice.rows).detach();
    const auto bytes = static_cast<std::int64_t>(input.nbytes()) * op_.tp_size();
    return op_.start(name_of(gemm_.collective, part), Collective::AllGather, bytes,
                     [input, target](Communicator& group) {
                       at::Tensor gathered =
                           new_rows(input, group.size() * input.size(0), input.size(1));
                       group.all_gather(input, gathered);
                       at::Tensor(target).copy_(gathered.view(target.sizes()));
                     });
  }

  /// Of two ranks the other's rows lie together in both tensors.
  void multiply_others(const RowSlice& slice) {
    const int ranks = op_.tp_size();
    const auto inputs = without(slice_of_shards(made_.whole, ranks, slice), op_.tp_rank());
    const auto targets = without(slice_of_shards(made_.result, ranks, slice), op_.tp_rank());
    if (ranks == 2) {
      gemm_.multiply(rows_of(targets.front()), rows_of(inputs.front()));
      return;
    }
    const at::Tensor rows = rows_of(inputs.size() == 1 ? inputs.front() : at::cat(inputs));
    const at::Tensor product = new_rows(rows, rows.size(0), gemm_.columns);
    gemm_.multiply(product, rows);
    std::int64_t first = 0;
    for (at::Tensor target : targets) {
      const std::int64_t count = target.size(0) * slice.rows;
      target.copy_(product.narrow(0, first, count).view(target.sizes()));
      first += count;
    }
  }

  OpContext& op_;
  const ParallelGemm& gemm_;
  at::Tensor shard_;
  std::vector<RowSlice> slices_;
  GatheredProduct made_;
};

}  // namespace

GatheredProduct gather_and_multiply(const StageScope& scope, const ParallelGemm& gemm,
                                    const at::Tensor& input) {
  OpContext& op = scope.context();
  const bool gathers = scope.has_sequence_shards();
  if (gathers && is_cut(scope, gemm)) return SliceGathers(scope, gemm, input).run();
  GatheredProduct made;
  made.whole = gathers ? op.all_gather(gemm.collective, input) : input;
  op.compute(gemm.kernel, [&] {
    made.result = new_rows(input, made.whole.size(0), gemm.columns);
    gemm.multiply(made.result, made.whole);
  });
  return made;
}

ReducedProduct multiply_and_reduce(const StageScope& scope, const ParallelGemm& gemm,
                                   const at::Tensor& input, const at::Tensor& sum) {
  OpContext& op = scope.context();
  const bool scatters = scope.has_sequence_shards();
  const int ranks = scatters ? op.tp_size() : 1;
  const std::int64_t shard = input.size(0) / ranks;
  const std::vector<RowSlice> slices =
      is_cut(scope, gemm) ? models::reduced_slices(shard) : std::vector<RowSlice>{{0, shard}};
  const auto count = static_cast<int>(slices.size());
  ReducedProduct made;
  made.result = sum.defined() && !scatters ? sum : new_rows(input, shard, gemm.columns);
  for (int i = 0; i < count; ++i) {
    const RowSlice& slice = slices[static_cast<std::size_t>(i)];
    const at::Tensor reduced = made.result.narrow(0, slice.first, slice.rows);
    at::Tensor partial = reduced;
    op.compute(part_name(gemm.kernel, i, count), [&] {
      if (scatters) {
        partial = sum.defined() ? rows_of(slice_of_shards(sum, ranks, slice))
                                : new_rows(input, ranks * slice.rows, gemm.columns);
      }
      gemm.multiply(partial, rows_of(slice_of_shards(input, ranks, slice)));
    });
    const std::string name = part_name(gemm.collective, i, count);
    if (scatters) {
      made.reductions.push_back(op.start_reduce_scatter(name, partial, reduced));
    } else if (op.tp_size() > 1) {
      made.reductions.push_back(op.start_all_reduce(name, partial, Reduction::Sum));
    }
  }
  return made;
}

}  // namespace foresail::runtime
