// Who waits for whom: exposed, hidden under a GEMM, or pipelined in chunks.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "foresail/models/row_slices.h"
#include "kernels.h"

namespace foresail::models {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

Model small(Block block = Block::Serial) {
  Model model;
  model.layers = 1;
  model.hidden = 64;
  model.heads = 4;
  model.kv_heads = 4;
  model.head_size = 16;
  model.ffn = 256;
  model.vocab = 256;
  model.block = block;
  return model;
}

enum class Sequence { Whole, Parallel };

Split split_of(Sequence sequence) {
  Split split;
  split.tp = 2;
  split.sequence_length = 18;  // not a multiple of the chunks
  split.sequence_parallel = sequence == Sequence::Parallel;
  return split;
}

/// Of the parts of a GEMM.
std::vector<std::int64_t> rows_of(const std::vector<Kernel>& list, const std::string& name) {
  std::vector<std::int64_t> rows;
  for (const Kernel& kernel : list) {
    if (kernel.name == name + "." + std::to_string(rows.size())) rows.push_back(kernel.m);
  }
  return rows;
}

TEST(TensorParallel, ForwardCollectivesAreExposed) {
  const Work whole = layer_work(small(), split_of(Sequence::Whole));
  EXPECT_THAT(awaited(whole.forward, "tp.reduce_proj"), ElementsAre("proj"));
  EXPECT_THAT(awaited(whole.forward, "add1"), ElementsAre("tp.reduce_proj"));
  EXPECT_THAT(awaited(whole.forward, "add2"), ElementsAre("tp.reduce_fc2"));
  const Work shard = layer_work(small(), split_of(Sequence::Parallel));
  EXPECT_THAT(awaited(shard.forward, "tp.gather_qkv"), ElementsAre("norm1"));
  EXPECT_THAT(awaited(shard.forward, "qkv"), ElementsAre("tp.gather_qkv"));
  EXPECT_THAT(awaited(shard.forward, "fc1"), ElementsAre("tp.gather_fc1"));
  EXPECT_THAT(awaited(shard.backward, "fc2.dgrad"), ElementsAre("tp.gather_grad_fc2"));
  EXPECT_THAT(awaited(shard.backward, "proj.dgrad"), ElementsAre("tp.gather_grad_proj"));
}

TEST(TensorParallel, AsyncReductionRunsUnderTheWeightGradient) {
  const Work work = layer_work(small(), split_of(Sequence::Whole));
  EXPECT_THAT(awaited(work.backward, "tp.reduce_fc1"), ElementsAre("fc1.dgrad"));
  EXPECT_THAT(awaited(work.backward, "fc1.wgrad"), IsEmpty());
  EXPECT_THAT(awaited(work.backward, "norm2.backward"), ElementsAre("tp.reduce_fc1"));
  EXPECT_THAT(awaited(work.backward, "norm1.backward"), ElementsAre("tp.reduce_qkv"));
}

TEST(TensorParallel, AsyncRegatherRunsUnderTheInputGradient) {
  const Work work = layer_work(small(), split_of(Sequence::Parallel));
  EXPECT_THAT(awaited(work.backward, "tp.regather_fc1"), ElementsAre("activation.backward"));
  EXPECT_THAT(awaited(work.backward, "fc1.dgrad"), IsEmpty());
  EXPECT_THAT(awaited(work.backward, "tp.scatter_fc1"), ElementsAre("fc1.dgrad"));
  EXPECT_THAT(awaited(work.backward, "fc1.wgrad"), ElementsAre("tp.regather_fc1"));
  EXPECT_THAT(awaited(work.backward, "norm2.backward"), ElementsAre("tp.scatter_fc1"));
}

TEST(TensorParallel, WithoutAsyncTheNextKernelWaits) {
  Split split = split_of(Sequence::Parallel);
  split.stack.async_tensor_parallel = false;
  const Work shard = layer_work(small(), split);
  EXPECT_THAT(awaited(shard.backward, "fc1.dgrad"), ElementsAre("tp.regather_fc1"));
  EXPECT_THAT(awaited(shard.backward, "fc1.wgrad"), ElementsAre("tp.scatter_fc1"));
  split.sequence_parallel = false;
  const Work whole = layer_work(small(), split);
  EXPECT_THAT(awaited(whole.backward, "fc1.wgrad"), ElementsAre("tp.reduce_fc1"));
}

TEST(TensorParallel, ParallelBlockSumsInputGradientsBeforeOneReduction) {
  const Work work = layer_work(small(Block::Parallel), split_of(Sequence::Parallel));
  EXPECT_THAT(awaited(work.backward, "tp.scatter_qkv"), ElementsAre("qkv.dgrad"));
  EXPECT_THAT(awaited(work.backward, "fc1.wgrad"), ElementsAre("tp.regather_qkv"));
  EXPECT_THAT(awaited(work.backward, "norm1.backward"), ElementsAre("tp.scatter_qkv"));
}

TEST(OverlapTp, PipelinesGathersWithGemmsInFourChunks) {
  Split split = split_of(Sequence::Parallel);
  split.overlap_tp = true;
  const Work work = layer_work(small(), split);
  for (int i = 0; i < kOverlapChunks; ++i) {
    const std::string chunk = "." + std::to_string(i);
    EXPECT_EQ(kernel(work.forward, "qkv" + chunk).parts, i == 0 ? 2 : 6);  // of 9 and 3 rows
    EXPECT_EQ(kernel(work.backward, "fc2.dgrad" + chunk).parts, i == 0 ? 2 : 6);
    EXPECT_THAT(awaited(work.forward, "tp.reduce_fc2" + chunk), ElementsAre("fc2" + chunk));
    if (i == 0) {  // the rank's own shard
      EXPECT_THAT(awaited(work.forward, "qkv" + chunk), ElementsAre());
      EXPECT_THAT(awaited(work.backward, "fc2.dgrad" + chunk), ElementsAre());
      continue;
    }
    EXPECT_THAT(awaited(work.forward, "tp.gather_qkv" + chunk), ElementsAre("norm1"));
    EXPECT_THAT(awaited(work.forward, "qkv" + chunk), ElementsAre("tp.gather_qkv" + chunk));
    EXPECT_THAT(awaited(work.backward, "fc2.dgrad" + chunk),
                ElementsAre("tp.gather_grad_fc2" + chunk));
  }
  EXPECT_THAT(awaited(work.backward, "tp.scatter_qkv.3"), ElementsAre("qkv.dgrad.3"));
  EXPECT_THAT(awaited(work.forward, "add1"), ElementsAre("tp.reduce_proj.0", "tp.reduce_proj.1",
                                                         "tp.reduce_proj.2", "tp.reduce_proj.3"));
  EXPECT_THAT(awaited(work.backward, "fc1.wgrad"), ElementsAre("tp.regather_fc1"));
  EXPECT_EQ(shape(work.backward, "fc1.wgrad"), "128 64 18");
}

// 18 tokens on 2 ranks: 9 own ones, then 3 times 3 of the other; and 2 x 2, 2, 2, 3 to reduce.
TEST(OverlapTp, PartsAreTheOwnShardThenSlicesOfTheOthers) {
  Split split = split_of(Sequence::Parallel);
  split.overlap_tp = true;
  const Work work = layer_work(small(), split);
  EXPECT_THAT(rows_of(work.forward, "qkv"), ElementsAre(9, 3, 3, 3));
  EXPECT_THAT(rows_of(work.backward, "fc2.dgrad"), ElementsAre(9, 3, 3, 3));
  EXPECT_EQ(kernel(work.forward, "tp.gather_qkv.1").bytes.count(), 2 * 3 * 64 * 2);
  EXPECT_THAT(rows_of(work.forward, "proj"), ElementsAre(4, 4, 4, 6));
  EXPECT_EQ(kernel(work.forward, "tp.reduce_proj.3").bytes.count(), 6 * 64 * 2);
  EXPECT_THAT(rows_of(work.backward, "qkv.dgrad"), ElementsAre(4, 4, 4, 6));
}

// 20 tokens on 4 ranks: shards of 5 are gathered as 1, 2, 2 and reduced as 1, 1, 1, 2.
TEST(OverlapTp, SlicesOfAShardMayBeUneven) {
  Split split = split_of(Sequence::Parallel);
  split.tp = 4;
  split.sequence_length = 20;
  split.overlap_tp = true;
  const Work work = layer_work(small(), split);
  EXPECT_THAT(rows_of(work.forward, "qkv"), ElementsAre(5, 3 * 1, 3 * 2, 3 * 2));
  EXPECT_EQ(kernel(work.forward, "tp.gather_qkv.1").bytes.count(), 4 * 1 * 64 * 2);
  EXPECT_EQ(kernel(work.forward, "tp.gather_qkv.3").bytes.count(), 4 * 2 * 64 * 2);
  EXPECT_THAT(rows_of(work.forward, "fc2"), ElementsAre(4, 4, 4, 8));
  EXPECT_THAT(gathered_slices(5), ElementsAre(RowSlice{0, 1}, RowSlice{1, 2}, RowSlice{3, 2}));
}

// Without sequence parallelism there is one shard: 18 tokens are 4, 5, 4, 5.
TEST(OverlapTp, AllReducesAreOfRowsInARow) {
  Split split = split_of(Sequence::Whole);
  split.overlap_tp = true;
  const Work work = layer_work(small(), split);
  EXPECT_THAT(rows_of(work.forward, "proj"), ElementsAre(4, 5, 4, 5));
  EXPECT_THAT(rows_of(work.backward, "fc1.dgrad"), ElementsAre(4, 5, 4, 5));
}

TEST(OverlapTp, ChunksAddUpToTheWhole) {
  for (const Sequence sequence : {Sequence::Whole, Sequence::Parallel}) {
    Split split = split_of(sequence);
    const Work whole = layer_work(small(), split);
    split.overlap_tp = true;
    const Work cut = layer_work(small(), split);
    EXPECT_EQ(flops_of(cut.forward), flops_of(whole.forward));
    EXPECT_EQ(flops_of(cut.backward), flops_of(whole.backward));
    for (const Collective kind :
         {Collective::AllReduce, Collective::AllGather, Collective::ReduceScatter}) {
      EXPECT_EQ(bytes_of(cut.forward, kind), bytes_of(whole.forward, kind));
      EXPECT_EQ(bytes_of(cut.backward, kind), bytes_of(whole.backward, kind));
    }
  }
}

TEST(OverlapTp, CutsAllReducesBehindTheirGemms) {
  Split split = split_of(Sequence::Whole);
  split.overlap_tp = true;
  split.stack.async_tensor_parallel = false;  // the overlap stands on its own
  const Work work = layer_work(small(), split);
  EXPECT_THAT(awaited(work.forward, "tp.reduce_proj.2"), ElementsAre("proj.2"));
  EXPECT_THAT(awaited(work.backward, "tp.reduce_qkv.1"), ElementsAre("qkv.dgrad.1"));
  EXPECT_THAT(awaited(work.backward, "qkv.wgrad"), IsEmpty());
  EXPECT_EQ(shape(work.forward, "qkv"), "18 96 64");  // nothing to pipeline with
}

TEST(OverlapTp, NeverCutsBelowOneToken) {
  Split split = split_of(Sequence::Parallel);
  split.sequence_length = 2;
  split.overlap_tp = true;
  const Work work = layer_work(small(), split);
  EXPECT_THAT(rows_of(work.forward, "qkv"), ElementsAre(1, 1));
  EXPECT_EQ(kernel(work.forward, "qkv.1").parts, 2);
  EXPECT_EQ(kernel(work.forward, "proj").parts, 1);
  EXPECT_EQ(shape(work.forward, "proj"), "2 64 32");  // one token in a shard: in one piece
  EXPECT_THAT(awaited(work.forward, "add1"), ElementsAre("tp.reduce_proj"));
}

TEST(Append, ShiftsIndicesAndWaitsForTheEndOfTheFirstList) {
  const Model model = small();
  Split split = split_of(Sequence::Whole);
  Model rotary = model;
  rotary.positions = Positions::Rotary;
  std::vector<Kernel> list = embedding_work(rotary, split).forward;
  ASSERT_EQ(list.back().name, "tp.reduce_embedding");
  append(list, layer_work(model, split).forward);
  EXPECT_THAT(awaited(list, "norm1"), ElementsAre("tp.reduce_embedding"));
  EXPECT_THAT(awaited(list, "add2"), ElementsAre("tp.reduce_fc2"));
  const std::size_t before = list.size();
  append(list, {});
  EXPECT_EQ(list.size(), before);
}

}  // namespace
}  // namespace foresail::models
