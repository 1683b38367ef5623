// What holds for every model and split, over 200 seeded cases.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "foresail/base/rng.h"
#include "kernels.h"

namespace foresail::models {
namespace {

template <class T>
T pick(RandomStream& random, const std::vector<T>& choices) {
  return choices[random.below(choices.size())];
}

void add_latent(RandomStream& random, Model& model) {
  model.kv_heads = model.heads;
  model.positions = Positions::Rotary;
  model.biases = false;
  model.block = Block::Serial;
  model.latent = {.kv_rank = 64,
                  .query_rank = pick<std::int64_t>(random, {0, 96}),
                  .rope_head_size = 8,
                  .value_head_size = pick<std::int64_t>(random, {16, 24})};
}

void add_experts(RandomStream& random, Model& model) {
  model.block = Block::Serial;
  model.experts.count = pick<int>(random, {4, 8});
  model.experts.per_token = pick<int>(random, {1, 2});
  model.experts.ffn = pick<std::int64_t>(random, {64, 96});
  model.experts.shared = pick<int>(random, {0, 2});
  if (model.experts.shared > 0) model.experts.shared_ffn = 32;
}

Model random_model(RandomStream& random) {
  Model model;
  model.layers = 2;
  model.heads = pick<int>(random, {8, 16});
  model.kv_heads = model.heads / pick<int>(random, {1, 2});
  model.head_size = pick<std::int64_t>(random, {16, 32});
  model.hidden = pick<std::int64_t>(random, {128, 256});
  model.ffn = pick<std::int64_t>(random, {512, 704});
  model.vocab = 1000;
  model.activation = pick<Activation>(random, {Activation::Gelu, Activation::SwiGlu});
  model.positions = pick<Positions>(random, {Positions::Learned, Positions::Rotary});
  model.dropout = pick<int>(random, {0, 1}) == 1;
  model.biases = pick<int>(random, {0, 1}) == 1;
  model.block = pick<Block>(random, {Block::Serial, Block::Parallel});
  if (pick<int>(random, {0, 1}) == 1) {
    model.attention = Attention::SlidingWindow;
    model.window = 24;
  }
  if (pick<int>(random, {0, 1, 2}) == 0) add_latent(random, model);
  if (pick<int>(random, {0, 1}) == 1) add_experts(random, model);
  EXPECT_NO_THROW(check(model));
  return model;
}

/// A layer with experts of a model that has them, else one with an MLP.
Work work_of(const Model& model, const Split& split) {
  return model.experts.count > 0 ? expert_layer_work(model, split, {}) : layer_work(model, split);
}

Split random_split(RandomStream& random) {
  Split split;
  split.tp = pick<int>(random, {1, 2, 4});
  split.cp = pick<int>(random, {1, 2});
  split.sequence_parallel = pick<int>(random, {0, 1}) == 1;
  split.microbatch_size = pick<std::int64_t>(random, {1, 3});
  split.sequence_length = pick<std::int64_t>(random, {64, 128});
  split.dtype = pick<DType>(random, {DType::Bf16, DType::Fp32, DType::Fp8});
  split.recompute =
      pick<Recompute>(random, {Recompute::None, Recompute::Selective, Recompute::Full});
  split.overlap_tp = pick<int>(random, {0, 1}) == 1;
  split.overlap_ep = pick<int>(random, {0, 1}) == 1;
  split.ep = pick<int>(random, {1, 2, 4});
  split.expert_tp = pick<int>(random, {1, 2});
  split.context_parallel =
      pick<ContextParallel>(random, {ContextParallel::AllGather, ContextParallel::Ring});
  split.stack.flash_attention = pick<int>(random, {0, 1}) == 1;
  split.stack.fused_kernels = pick<int>(random, {0, 1}) == 1;
  split.stack.async_tensor_parallel = pick<int>(random, {0, 1}) == 1;
  split.stack.early_stop_recompute = pick<int>(random, {0, 1}) == 1;
  return split;
}

/// Without sequence parallelism all tp ranks route, and project down, the same tokens.
void run_nothing_twice(const Model& model, Split& split) {
  const bool needs_shards = model.experts.count > 0 || model.latent.kv_rank > 0;
  if (needs_shards) split.sequence_parallel = split.tp > 1;
}

// Names are unique; a kernel waits for earlier ones only, compute for collectives and collectives
// for compute; and every collective inside a layer is awaited before the layer ends.
void expect_sound(const std::vector<Kernel>& list) {
  std::set<std::string> seen;
  std::set<int> open;
  for (std::size_t i = 0; i < list.size(); ++i) {
    EXPECT_TRUE(seen.insert(list[i].name).second) << list[i].name;
    EXPECT_GT(list[i].bytes.count(), 0) << list[i].name;
    const bool is_collective = list[i].kind == KernelKind::Collective;
    EXPECT_EQ(is_collective, list[i].lane != Lane::Compute) << list[i].name;
    for (const int before : list[i].after) {
      ASSERT_LT(before, static_cast<int>(i)) << list[i].name;
      const Kernel& awaited = list[static_cast<std::size_t>(before)];
      EXPECT_NE(awaited.kind == KernelKind::Collective, is_collective) << list[i].name;
      open.erase(before);
    }
    if (is_collective) open.insert(static_cast<int>(i));
  }
  EXPECT_TRUE(open.empty());
}

double gemm_flops(const std::vector<Kernel>& list) {
  double total = 0;
  for (const Kernel& entry : list) {
    const bool is_linear = entry.kind == KernelKind::Gemm && !entry.name.starts_with("attention");
    if (is_linear && !entry.name.ends_with(".recompute")) total += entry.flops.count();
  }
  return total;
}

TEST(Splits, ListsAreSoundAndFlopsAreConserved) {
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    RandomStream random = Rng(seed).stream("split");
    const Model model = random_model(random);
    Split split = random_split(random);
    run_nothing_twice(model, split);
    const Work work = work_of(model, split);
    expect_sound(work.forward);
    expect_sound(work.backward);
    // Ranks share the products evenly, and a backward runs each twice.
    Split alone = split;
    alone.tp = 1;
    alone.cp = 1;
    const Work whole = work_of(model, alone);
    const double ranks = split.tp * split.cp;
    EXPECT_DOUBLE_EQ(ranks * gemm_flops(work.forward), gemm_flops(whole.forward));
    EXPECT_DOUBLE_EQ(2 * gemm_flops(work.forward), gemm_flops(work.backward));
    EXPECT_EQ(work_of(model, split).backward, work.backward);
  }
}

// The kernels of all ranks add up to the model FLOPs that MFU is made of, recomputation apart;
// unfused attention computes the whole square, as the non-causal convention counts.
TEST(Splits, KernelsAddUpToModelFlops) {
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    RandomStream random = Rng(seed).stream("split");
    Model model = random_model(random);
    model.vocab = 1024;  // a multiple of 128 tp: no padding
    Split split = random_split(random);
    run_nothing_twice(model, split);
    split.recompute = Recompute::None;
    split.stack.flash_attention = false;
    const Work layer = work_of(model, split);
    const Work head = head_work(model, split);
    const double step = model.layers * (flops_of(layer.forward) + flops_of(layer.backward)) +
                        flops_of(head.forward) + flops_of(head.backward);
    const FlopConvention convention{FlopFormula::Exact, false};
    const double expected =
        model_flops(model, split.microbatch_size, split.sequence_length, convention).count();
    EXPECT_NEAR(split.tp * split.cp * step / expected, 1, 1e-12);
  }
}

/// Kernels without whom they wait for, sorted by name.
std::vector<Kernel> sorted(std::vector<Kernel> list) {
  for (Kernel& kernel : list) kernel.after.clear();
  std::ranges::sort(list, {}, &Kernel::name);
  return list;
}

// A split backward is the same work: no kernel is lost, doubled or changed, and both halves keep
// their order and their waits.
TEST(SplitBackward, HalvesAddUpToTheWhole) {
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    RandomStream random = Rng(seed).stream("split");
    const Model model = random_model(random);
    const Split split = random_split(random);
    for (const Work& work :
         {work_of(model, split), embedding_work(model, split), head_work(model, split)}) {
      const SplitBackward halves = split_backward(work.backward);
      std::vector<Kernel> both = halves.input;
      both.insert(both.end(), halves.weight.begin(), halves.weight.end());
      EXPECT_EQ(sorted(both), sorted(work.backward));
      expect_sound(halves.input);
      expect_sound(halves.weight);
    }
  }
}

// An input of a linear layer that is gathered again is there before its weight gradient.
TEST(SplitBackward, WeightGradientsWaitForTheirGatheredInput) {
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    RandomStream random = Rng(seed).stream("split");
    const Model model = random_model(random);
    const SplitBackward halves = split_backward(work_of(model, random_split(random)).backward);
    std::set<std::string> gathered;
    for (const Kernel& kernel : halves.weight) {
      for (const int before : kernel.after) {
        gathered.insert(halves.weight[static_cast<std::size_t>(before)].name);
      }
      if (!kernel.name.ends_with(".wgrad")) continue;
      const std::string input = "tp.regather_" + kernel.name.substr(0, kernel.name.find('.'));
      const bool is_gathered = std::ranges::any_of(
          halves.weight, [&](const Kernel& other) { return other.name == input; });
      EXPECT_EQ(gathered.contains(input), is_gathered) << kernel.name;
    }
  }
}

}  // namespace
}  // namespace foresail::models
