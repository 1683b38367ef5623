// The kinds of context parallelism: what is exchanged, and beside what.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kernels.h"

namespace foresail::models {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// 8 heads of 16, 4 key heads.
Model small() {
  Model model;
  model.name = "small";
  model.layers = 1;
  model.hidden = 128;
  model.heads = 8;
  model.kv_heads = 4;
  model.head_size = 16;
  model.ffn = 256;
  model.vocab = 256;
  return model;
}

// 2 samples of 32 tokens on 4 ranks: T = 16.
Split split_of(ContextParallel kind) {
  Split split;
  split.cp = 4;
  split.context_parallel = kind;
  split.microbatch_size = 2;
  split.sequence_length = 32;
  return split;
}

constexpr std::int64_t kKeysAndValues = 16 * 2 * 64 * 2;  // bytes, of one rank's tokens

double attention_flops(const std::vector<Kernel>& list) {
  double total = 0;
  for (const Kernel& each : list) {
    if (each.kind == KernelKind::Attention) total += each.flops.count();
  }
  return total;
}

TEST(ContextParallel, KindsShareTheSameWork) {
  const Work gather = layer_work(small(), split_of(ContextParallel::AllGather));
  for (const ContextParallel kind : {ContextParallel::Ring, ContextParallel::AllToAll}) {
    const Work work = layer_work(small(), split_of(kind));
    EXPECT_DOUBLE_EQ(attention_flops(work.forward), attention_flops(gather.forward));
    EXPECT_DOUBLE_EQ(attention_flops(work.backward), attention_flops(gather.backward));
  }
}

TEST(ContextParallel, ARingExchangesBesideTheBlockThatItDoesNotFeed) {
  const std::vector<Kernel> list = layer_work(small(), split_of(ContextParallel::Ring)).forward;
  EXPECT_EQ(count_of(list, Collective::SendRecv), 3);
  EXPECT_EQ(bytes_of(list, Collective::SendRecv), 3 * kKeysAndValues);
  EXPECT_THAT(awaited(list, "attention.0"), IsEmpty());
  EXPECT_THAT(awaited(list, "attention.1"), ElementsAre("cp.exchange_kv.0"));
  EXPECT_THAT(awaited(list, "attention.3"), ElementsAre("cp.exchange_kv.2"));
  EXPECT_EQ(index_of(list, "attention.1"), index_of(list, "cp.exchange_kv.1") + 1);
  EXPECT_EQ(index_of(list, "attention.merge"), index_of(list, "attention.3") + 1);
}

TEST(ContextParallel, ARingsGradientsComeHome) {
  const std::vector<Kernel> list = layer_work(small(), split_of(ContextParallel::Ring)).backward;
  EXPECT_EQ(count_of(list, Collective::SendRecv), 3 + 4);
  EXPECT_THAT(awaited(list, "cp.exchange_grad_kv.0"), ElementsAre("attention.backward.0"));
}

TEST(ContextParallel, AllToAllTradesTokensForHeads) {
  const Work work = layer_work(small(), split_of(ContextParallel::AllToAll));
  const Kernel& core = kernel(work.forward, "attention");
  EXPECT_EQ(core.heads, 2);
  EXPECT_EQ(core.query_length, 32);
  EXPECT_EQ(core.key_length, 32);
  // 16 tokens of 8 query, 4 key and 4 value heads; back, 8 heads of outputs.
  EXPECT_EQ(kernel(work.forward, "cp.scatter_heads").bytes.count(), 16 * 16 * 16 * 2);
  EXPECT_EQ(kernel(work.forward, "cp.gather_heads").bytes.count(), 16 * 8 * 16 * 2);
  EXPECT_THAT(awaited(work.forward, "attention"), ElementsAre("cp.scatter_heads"));
  EXPECT_THAT(awaited(work.forward, "proj"), ElementsAre("cp.gather_heads"));
  EXPECT_EQ(bytes_of(work.backward, Collective::AllToAll),
            bytes_of(work.forward, Collective::AllToAll));
}

// all_gather holds all ranks' keys and values and their gradients; a ring two blocks of each.
TEST(ContextParallel, ARingNeedsLessRoom) {
  Model model = small();
  model.ffn = 8;  // so that attention is the widest part
  const auto room = [&](ContextParallel kind) {
    return sum(layer_work(model, split_of(kind)).backward_peak).count();
  };
  EXPECT_EQ(room(ContextParallel::AllGather) - room(ContextParallel::Ring), 4 * kKeysAndValues);
}

}  // namespace
}  // namespace foresail::models
