#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "catalogue.h"
#include "foresail/models/operators.h"

namespace foresail::models {
namespace {

Model gpt3() {
  return catalogue_model("gpt3_175b");
}

TEST(CountParameters, MeetsTheLlamaFamilyExactly) {
  EXPECT_EQ(count_parameters(catalogue_model("llama3_8b")).total(), 8'030'261'248);
  EXPECT_EQ(count_parameters(catalogue_model("llama3_70b")).total(), 70'553'706'496);
  EXPECT_EQ(count_parameters(catalogue_model("llama3_405b")).total(), 405'853'388'800);
}

TEST(CountParameters, MeetsGpt2SmallExactly) {
  EXPECT_EQ(count_parameters(catalogue_model("gpt2_small")).total(), 124'439'808);
}

// Megatron's estimator knows neither biases nor positions: 12 L h^2 + h V + (4 L + 2) h.
TEST(CountParameters, MeetsMegatronsEstimateOfGpt3WithoutBiasesAndPositions) {
  Model model = gpt3();
  model.biases = false;
  model.positions = Positions::Alibi;
  model.max_positions = 0;
  const std::int64_t h = 12288;
  EXPECT_EQ(count_parameters(model).total(), 12 * 96 * h * h + h * 51200 + (4 * 96 + 2) * h);
  EXPECT_NEAR(static_cast<double>(count_parameters(model).total()), 174.58e9, 0.005e9);
}

// Biases add 9 h per layer (qkv 3, proj 1, fc1 4, fc2 1), positions 2048 h: "174.6 B".
TEST(CountParameters, AddsBiasesAndPositionsOfGpt3) {
  Model bare = gpt3();
  bare.biases = false;
  bare.positions = Positions::Alibi;
  bare.max_positions = 0;
  const std::int64_t h = 12288;
  EXPECT_EQ(count_parameters(gpt3()).total() - count_parameters(bare).total(),
            9 * 96 * h + 2048 * h);
  EXPECT_NEAR(static_cast<double>(count_parameters(gpt3()).total()), 174.6e9, 0.05e9);
}

TEST(CountParameters, CountsByPart) {
  const ParameterCount count = count_parameters(catalogue_model("llama3_8b"));
  EXPECT_EQ(count.attention, 32 * (4096 * (4096 + 2 * 1024) + 4096 * 4096));
  EXPECT_EQ(count.mlp, 32LL * 3 * 4096 * 14336);
  EXPECT_EQ(count.norms, 65 * 4096);
  EXPECT_EQ(count.embedding, 128256 * 4096);
  EXPECT_EQ(count.head, 128256 * 4096);
}

TEST(CountParameters, ParallelBlockHasOneNormPerLayer) {
  Model model = gpt3();
  const std::int64_t serial = count_parameters(model).total();
  model.block = Block::Parallel;
  EXPECT_EQ(serial - count_parameters(model).total(), 96 * 2 * 12288);
}

TEST(CountParameters, SizesThePositionTableByTheSequenceWhereNothingElseDoes) {
  Model model = gpt3();
  model.max_positions = 0;
  EXPECT_EQ(count_parameters(model, 4096).embedding - count_parameters(model).embedding,
            4096 * 12288);
  EXPECT_EQ(embedding_parameters(model, 8, 4096).replicated, 4096 * 12288);
  EXPECT_EQ(embedding_parameters(model, 8).replicated, 0);
}

TEST(RankParameters, ShardsAddUpToTheWholeModel) {
  const Model model = gpt3();
  for (const int tp : {1, 2, 4, 8}) {
    const RankParameters layer = layer_parameters(model, tp);
    const RankParameters embedding = embedding_parameters(model, tp);
    const RankParameters head = head_parameters(model, tp, false);
    // 51,200 is a multiple of 128 * 8, so no padding comes in.
    const std::int64_t total = 96 * (tp * layer.sharded + layer.replicated) +
                               tp * embedding.sharded + embedding.replicated + tp * head.sharded +
                               head.replicated;
    EXPECT_EQ(total, count_parameters(model).total()) << "tp " << tp;
  }
}

// Facts: Megatron's loaded rank of GPT-3 at t = 8, p = 8 holds 2.797e9 parameters (no biases).
TEST(RankParameters, MeetsMegatronsLoadedRank) {
  Model model = gpt3();
  model.biases = false;
  const std::int64_t held =
      12 * layer_parameters(model, 8).total() + embedding_parameters(model, 8).sharded;
  EXPECT_NEAR(static_cast<double>(held), 2.797e9, 0.001e9);
}

TEST(RankParameters, LastStageKeepsAnOwnCopyOfATiedMatrixOnRequest) {
  const Model model = gpt3();
  EXPECT_EQ(head_parameters(model, 8, true).sharded, 51200 / 8 * 12288);
  EXPECT_EQ(head_parameters(model, 8, false).sharded, 0);
  EXPECT_EQ(head_parameters(catalogue_model("llama3_8b"), 1, false).sharded, 128256 * 4096);
}

TEST(PaddedVocab, IsAMultipleOf128TimesTp) {
  Model model = gpt3();
  model.vocab = 50257;
  EXPECT_EQ(padded_vocab(model, 1), 50304);
  EXPECT_EQ(padded_vocab(model, 8), 51200);
  model.vocab = 250680;
  EXPECT_EQ(padded_vocab(model, 4), 250880);  // as BLOOM's
}

double flops(const Model& model, std::int64_t samples, const FlopConvention& convention) {
  return model_flops(model, samples, 2048, convention).count();
}

TEST(ModelFlops, ClosedFormAndSumAgreeOnTheGptFamily) {
  for (const char* name : {"gpt_1.7b", "gpt_22b", "gpt3_175b", "gpt_1000b", "megascale_175b"}) {
    const Model model = catalogue_model(name);
    for (const bool causal : {false, true}) {
      const double closed = flops(model, 8, {FlopFormula::Korthikanti, causal});
      EXPECT_NEAR(flops(model, 8, {FlopFormula::Exact, causal}) / closed, 1, 1e-12) << name;
    }
  }
}

// Where the closed form does not hold: SwiGLU has three matrices, GQA narrower keys and values.
TEST(ModelFlops, SumCountsWhatTheClosedFormDoesNotKnow) {
  const Model model = catalogue_model("llama3_8b");
  const double matrices = 32.0 * (4096.0 * 6144 + 4096.0 * 4096 + 3 * 4096.0 * 14336);
  const double expected =
      6 * 2048.0 * (matrices + 4096.0 * 128256) + 3 * 32.0 * 4 * 2048.0 * 2048 * 4096;
  EXPECT_NEAR(flops(model, 1, {FlopFormula::Exact, false}) / expected, 1, 1e-12);
}

TEST(ModelFlops, CausalCountsHalfTheMatrixAndAWindowItsShare) {
  Model model = gpt3();
  const double full = flops(model, 1, {FlopFormula::Exact, false});
  const double attention = 3 * 96.0 * 4 * 2048.0 * 2048 * 12288;
  EXPECT_NEAR(full - flops(model, 1, {FlopFormula::Exact, true}), attention / 2, full * 1e-12);
  model.attention = Attention::SlidingWindow;
  model.window = 1024;  // 1024 keys at most: 1/2 - 1/8 of the square
  EXPECT_NEAR(full - flops(model, 1, {FlopFormula::Exact, true}), attention * 5 / 8, full * 1e-12);
  model.window = 4096;  // longer than the sequence
  EXPECT_NEAR(full - flops(model, 1, {FlopFormula::Exact, true}), attention / 2, full * 1e-12);
}

struct MfuRow {
  int gpus;
  std::int64_t samples;
  double seconds;
  double full;
  double causal;  // 0: not tabulated
};

// MegaScale (NSDI 2024), Table 2: MFU on 312 TFLOP/s that its iteration times give.
TEST(ModelFlops, GiveTheMfuTableOfMegaScale) {
  const MfuRow rows[] = {{3072, 6144, 23.66, .598, .590}, {6144, 6144, 12.21, .579, .571},
                         {8192, 6144, 9.56, .555, .547},  {12288, 6144, 6.34, .558, .550},
                         {3072, 6144, 29.02, .487, .481}, {6144, 6144, 14.78, .479, .472},
                         {8192, 6144, 12.24, .433, .428}, {12288, 6144, 8.57, .413, .407},
                         {256, 768, 32.0, .663, 0},       {512, 768, 16.5, .643, 0},
                         {768, 768, 11.5, .615, 0},       {1024, 768, 8.9, .596, 0}};
  const Model model = catalogue_model("megascale_175b");
  for (const MfuRow& row : rows) {
    const double peak = row.seconds * row.gpus * 312e12;
    EXPECT_NEAR(flops(model, row.samples, {FlopFormula::Korthikanti, false}) / peak, row.full,
                0.0006)
        << row.gpus << " GPUs, " << row.seconds << " s";
    if (row.causal == 0) continue;
    EXPECT_NEAR(flops(model, row.samples, {FlopFormula::Korthikanti, true}) / peak, row.causal,
                0.0006)
        << row.gpus << " GPUs, " << row.seconds << " s";
  }
}

TEST(ModelFlops, ConventionsNameThemselves) {
  EXPECT_EQ(to_text(FlopConvention{}), "korthikanti_2022, full attention");
  EXPECT_EQ(to_text(FlopConvention{FlopFormula::Exact, true}), "exact, causal attention");
}

}  // namespace
}  // namespace foresail::models
