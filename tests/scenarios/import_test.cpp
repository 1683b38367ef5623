#include "foresail/scenarios/import.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "foresail/base/error.h"
#include "foresail/base/yaml.h"
#include "foresail/planner/plan.h"
#include "foresail/scenarios/scenario.h"

namespace foresail::scenarios {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;

const std::filesystem::path kJobs =
    std::filesystem::path(FORESAIL_SOURCE_DIR) / "tests/scenarios/data/jobs";

ImportOptions on(const std::string& cluster, int gpus = 0) {
  ImportOptions options;
  options.cluster = cluster;
  options.gpus = gpus;
  return options;
}

// Read back as anyone would.
planner::Plan plan_of(const ImportedJob& job) {
  return read_scenario(Yaml::parse(to_yaml(job, "a job"), "imported.yaml")).plan;
}

std::filesystem::path write(const std::string& ending, const std::string& text) {
  const std::string name = ::testing::UnitTest::GetInstance()->current_test_info()->name();
  const auto folder = std::filesystem::path(::testing::TempDir()) / "foresail_import_test";
  std::filesystem::create_directories(folder);
  const auto path = folder / (name + ending);
  std::ofstream(path) << text;
  return path;
}

std::string refusal(const std::string& ending, const std::string& text, ImportOptions options) {
  try {
    import_job(write(ending, text), options);
  } catch (const Error& problem) {
    return problem.what();
  }
  return "accepted";
}

constexpr const char* kUneven =
    "--num-layers 65 --hidden-size 1024 --num-attention-heads 16 --seq-length 1024 "
    "--max-position-embeddings 1024 --micro-batch-size 1 --global-batch-size 64 --vocab-size 51200 "
    "--pipeline-model-parallel-size 16 ";

constexpr const char* kInterleaved =
    "--num-layers 64 --hidden-size 1024 --num-attention-heads 16 --seq-length 1024 "
    "--max-position-embeddings 1024 --micro-batch-size 1 --global-batch-size 64 --vocab-size 51200 "
    "--pipeline-model-parallel-size 4 --num-layers-per-virtual-pipeline-stage 4 "
    "--use-distributed-optimizer ";

// Megatron-LM's own example without the layer that predicts one more token: 16 stages of two
// chunks.
TEST(ImportMegatron, ReadsWhichLayersStandOnWhichStage) {
  const std::string text =
      std::string(kUneven) + "--pipeline-model-parallel-layout \"Et*5|(tt|)*30,L\"";
  const planner::Layout layout = plan_of(import_job(write(".sh", text), on("dgx_h100", 16))).layout;
  EXPECT_EQ(layout.v, 2);
  ASSERT_EQ(layout.stages.each.size(), 32U);
  EXPECT_EQ(layout.stages.each.front(), 5);
  EXPECT_EQ(layout.stages.each[1], 2);
  EXPECT_EQ(layout.stages.each[30], 2);
  EXPECT_EQ(layout.stages.each.back(), 0);
}

TEST(ImportMegatron, RefusesStagesThatAreNone) {
  const auto refused = [](const std::string& layout) {
    const std::string text =
        std::string(kUneven) + "--pipeline-model-parallel-layout \"" + layout + "\"";
    return refusal(".sh", text, on("dgx_h100", 16));
  };
  EXPECT_THAT(refused("Et*3|(tt|)*29,m|L"), HasSubstr("stage 30 is \"m\""));
  EXPECT_THAT(refused("t*2|(t|)*14t*2L"), HasSubstr("must begin with E"));
  EXPECT_THAT(refused("Et*2|(t|)*14t*2"), HasSubstr("must end with L"));
  EXPECT_THAT(refused("Et|tE|tL"), HasSubstr("3 stages % pipeline-model-parallel-size 16"));
  EXPECT_THAT(refused("Et*3|(tt|*29"), HasSubstr("column 13: \"(\" is not closed"));
  EXPECT_THAT(refused("Et)"), HasSubstr("column 3: \")\" closes nothing"));
  EXPECT_THAT(refused("Ex"), HasSubstr("column 2: \"x\" is none of"));
  EXPECT_THAT(refused("Et*|"), HasSubstr("needs a number"));
  EXPECT_THAT(refused("Et*99999999999999999999|L"), HasSubstr("too many layers"));
  EXPECT_THAT(refused("((((((((((t))))))))))"), HasSubstr("nested too deeply"));
}

TEST(ImportMegatron, ReadsUnevenEnds) {
  const std::string text = std::string(kUneven) +
                           "--decoder-first-pipeline-num-layers 5 "
                           "--decoder-last-pipeline-num-layers 4 --optimizer-cpu-offload "
                           "--optimizer-offload-fraction 0.5";
  const planner::Layout layout = plan_of(import_job(write(".sh", text), on("dgx_h100", 16))).layout;
  EXPECT_EQ(layout.stages.first, 5);
  EXPECT_EQ(layout.stages.last, 4);
  EXPECT_EQ(layout.optimizer_offload, 0.5);
  const std::string counted = std::string(kUneven) + "--account-for-loss-in-pipeline-split";
  const planner::Layout other =
      plan_of(import_job(write(".sh", counted), on("dgx_h100", 16))).layout;
  EXPECT_TRUE(other.stages.account_for_loss);
}

// Reductions of an interleaved pipeline are aligned unless told otherwise, and gathers with them.
TEST(ImportMegatron, ReadsWhatOfDataParallelismOverlapsAndIsAligned) {
  const auto overlap_of = [](const std::string& flags) {
    const std::string text = std::string(kInterleaved) + flags;
    return plan_of(import_job(write(".sh", text), on("dgx_h100", 16))).layout.overlap;
  };
  const planner::DataMessages gradients(true, false);
  EXPECT_EQ(overlap_of("").dp, false);
  EXPECT_EQ(overlap_of("").aligned, false);
  EXPECT_EQ(overlap_of("--overlap-grad-reduce").dp, gradients);
  EXPECT_EQ(overlap_of("--overlap-grad-reduce").aligned, gradients);
  EXPECT_EQ(overlap_of("--overlap-grad-reduce --no-align-grad-reduce").aligned, false);
  const std::string both = "--overlap-grad-reduce --overlap-param-gather ";
  EXPECT_EQ(overlap_of(both).dp, true);
  EXPECT_EQ(overlap_of(both).aligned, true);
  EXPECT_EQ(overlap_of(both + "--no-align-param-gather").aligned, gradients);
  EXPECT_EQ(overlap_of(both + "--align-param-gather=false").aligned, gradients);
  EXPECT_EQ(overlap_of(both + "--align-param-gather --no-align-param-gather").aligned, gradients);
  // The names until 2024.
  EXPECT_EQ(overlap_of(both + "--delay-param-gather").aligned, true);
  EXPECT_EQ(overlap_of("--overlap-grad-reduce --no-delay-grad-reduce").aligned, false);
}

TEST(ImportMegatron, SaysWhatMegatronWouldRefuse) {
  const std::string text = std::string(kInterleaved) + "--overlap-param-gather";
  const ImportedJob job = import_job(write(".sh", text), on("dgx_h100", 16));
  EXPECT_THAT(job.notes, Contains(HasSubstr("refuses --overlap-param-gather without")));
}

TEST(ImportMegatron, ScriptBecomesTheJobItStarts) {
  ImportOptions options = on("megascale");
  options.vocab = 51200;
  const ImportedJob job = import_job(kJobs / "gpt3_175b.sh", options);
  const planner::Plan plan = plan_of(job);
  EXPECT_EQ(plan.model.layers, 96);
  EXPECT_EQ(plan.model.hidden, 12288);
  EXPECT_EQ(plan.model.vocab, 51200);
  EXPECT_FALSE(plan.model.dropout);
  const planner::Layout& layout = plan.layout;
  EXPECT_EQ(layout.tp, 8);
  EXPECT_EQ(layout.pp, 8);
  EXPECT_EQ(layout.v, 6);
  EXPECT_EQ(layout.dp, 16);  // 128 nodes of 8
  EXPECT_EQ(layout.schedule, planner::ScheduleKind::Interleaved);
  EXPECT_TRUE(layout.sequence_parallel);
  EXPECT_EQ(layout.zero_stage, 1);
  EXPECT_EQ(layout.overlap,
            (planner::Overlap{.tp = true, .pp = true, .dp = true, .aligned = true}));
  EXPECT_EQ(plan.training.global_batch_size, 1536);
  EXPECT_EQ(plan.training.precision, DType::Bf16);
  EXPECT_FALSE(plan.stack.fused_cross_entropy);
  EXPECT_TRUE(planner::check(plan).is_feasible());
  EXPECT_THAT(job.unused, Not(Contains(HasSubstr("log"))));
}

TEST(ImportMegatron, VariablesOfTheCallerWin) {
  ImportOptions options = on("megascale");
  options.vocab = 51200;
  options.variables["NUM_NODES"] = "64";
  options.variables["TP"] = "4";
  const planner::Plan plan = plan_of(import_job(kJobs / "gpt3_175b.sh", options));
  EXPECT_EQ(plan.layout.tp, 4);
  EXPECT_EQ(plan.layout.dp, 16);  // 512 / (4 * 8)
}

// What follows the program's name is not a value of the launcher's last option.
TEST(ImportMegatron, ALaunchersLastOptionEndsAtTheProgram) {
  const auto nodes = [](const std::string& launch) {
    const std::string script =
        "ARGS=(--num-layers 4 --hidden-size 1024 --num-attention-heads 16 --seq-length 1024\n"
        "  --micro-batch-size 1 --tensor-model-parallel-size 8 --vocab-size 51200)\n" +
        launch + " pretrain_gpt.py \"${ARGS[@]}\"\n";
    ImportOptions options;
    options.cluster = "dgx_h100";
    return plan_of(import_job(write(".sh", script), options)).layout.dp;
  };
  EXPECT_EQ(nodes("torchrun --nproc_per_node 8 --nnodes 4"), 4);
  EXPECT_EQ(nodes("torchrun --nnodes 4 --nproc_per_node 8"), 4);
}

constexpr const char* kSmall =
    "--num-layers 4 --hidden-size 1024 --num-attention-heads 16 --seq-length 1024 "
    "--micro-batch-size 1 --vocab-size 51200 ";

TEST(ImportMegatron, ModulesToRunAgainAreRead) {
  const auto modules = [](const std::string& names) {
    const std::string script =
        std::string(kSmall) + "--recompute-granularity selective --recompute-modules " + names;
    return plan_of(import_job(write(".sh", script), on("dgx_h100", 8))).layout.recompute;
  };
  const models::RecomputeModules some = modules("layernorm moe").modules;
  EXPECT_TRUE(some.norm && some.mlp);
  EXPECT_FALSE(some.core_attention || some.activation);
  EXPECT_TRUE(modules("core_attn").modules.core_attention);
  EXPECT_THROW(modules("mla_up_proj"), Error);
}

TEST(ImportMegatron, AnUnfusedBackendIsNoFlashAttention) {
  const auto is_flash = [](const std::string& options) {
    const std::string script = kSmall + options;
    return plan_of(import_job(write(".sh", script), on("dgx_h100", 8))).stack.flash_attention;
  };
  EXPECT_FALSE(is_flash("--use-flash-attn --attention-backend unfused"));
  EXPECT_TRUE(is_flash("--use-flash-attn --transformer-impl local"));
  EXPECT_FALSE(is_flash("--transformer-impl local"));
}

TEST(ImportMegatron, PlainWordsAreEnough) {
  const planner::Plan plan = plan_of(import_job(
      write(".txt",
            "--num-layers 32 --hidden-size 4096 --ffn-hidden-size=14336 --num-attention-heads 32 "
            "--group-query-attention --num-query-groups 8 --swiglu --normalization RMSNorm "
            "--position-embedding-type rope --untie-embeddings-and-output-weights "
            "--disable-bias-linear --vocab-size 128256 --seq-length 8192 --micro-batch-size 1 "
            "--context-parallel-size 2 --cp-comm-type a2a --tensor-model-parallel-size 2 "
            "--hidden-dropout 0 --attention-dropout 0 --bf16\n"),
      on("dgx_h100", 16)));
  EXPECT_EQ(plan.model.kv_heads, 8);
  EXPECT_EQ(plan.model.ffn, 14336);
  EXPECT_EQ(models::count_parameters(plan.model).total(), 8030261248);  // Llama 3 8B
  EXPECT_EQ(plan.layout.cp, 2);
  EXPECT_EQ(plan.layout.cp_kind, models::ContextParallel::AllToAll);
  EXPECT_EQ(plan.layout.dp, 4);
  EXPECT_EQ(plan.training.global_batch_size, 4);  // one microbatch each
}

TEST(ImportMegatron, ComplaintsNameLineAndOption) {
  const std::string model =
      "--num-layers 2 --hidden-size 256\n--num-attention-heads four\n--seq-length 128\n";
  EXPECT_THAT(refusal(".sh", model, on("selene", 8)),
              HasSubstr(".sh:2: num-attention-heads: expected an integer, got \"four\""));
  EXPECT_THAT(refusal(".sh", "--hidden-size 256\n", on("selene", 8)),
              HasSubstr("num-layers: is missing"));
  const std::string rest =
      "--num-layers 2 --hidden-size 256 --num-attention-heads 4 --seq-length 128\n"
      "--micro-batch-size $MBS\n";
  EXPECT_THAT(refusal(".sh", rest, on("selene", 8)), HasSubstr("give --vocab"));
  ImportOptions options = on("selene", 8);
  options.vocab = 1000;
  EXPECT_THAT(refusal(".sh", rest, options),
              HasSubstr(".sh:2: micro-batch-size: expected an integer, got \"$MBS\""));
  options.variables["MBS"] = "2";
  EXPECT_EQ(refusal(".sh", rest, options), "accepted");
  options.gpus = 0;
  EXPECT_THAT(refusal(".sh", rest, options), HasSubstr("give --gpus"));
  options.gpus = 6;
  EXPECT_THAT(refusal(".sh", rest + "--tensor-model-parallel-size 4\n", options),
              HasSubstr("6 GPUs % (tp 4 * cp 1 * pp 1) = 2, must be 0"));
}

TEST(ImportNemo, FlagsAndNumbersAreNoLists) {
  const auto refused = [](const std::string& optim) {
    const std::string text =
        "trainer: {devices: 8, num_nodes: 2}\n"
        "model: {num_layers: 8, hidden_size: 64, num_attention_heads: 4, override_vocab_size: 512, "
        "encoder_seq_length: 64, max_position_embeddings: 64, micro_batch_size: 1, optim: {";
    return refusal(".yaml", text + optim + "}}\n", on("dgx_h100", 16));
  };
  const std::string core = "name: mcore_distributed_optim, ";
  EXPECT_THAT(refused(core + "overlap_grad_sync: [true]"),
              HasSubstr("model.optim.overlap_grad_sync: expected true or false, got a list"));
  EXPECT_THAT(refused(core + "overlap_grad_sync: []"), HasSubstr("got a list"));
  EXPECT_THAT(refused(core + "lr: [1]"), HasSubstr("expected a number, got a list"));
}

TEST(ImportTorchTitan, JobBecomesShardedDataParallelism) {
  const ImportedJob job = import_job(kJobs / "llama3_70b.toml", on("dgx_h100", 256));
  const planner::Plan plan = plan_of(job);
  EXPECT_EQ(plan.model.layers, 80);
  EXPECT_EQ(plan.layout.tp, 8);
  EXPECT_EQ(plan.layout.dp, 32);
  EXPECT_EQ(plan.layout.zero_stage, 3);
  EXPECT_EQ(plan.layout.recompute, models::Recompute::Full);
  EXPECT_EQ(plan.layout.microbatch_size, 2);
  EXPECT_EQ(plan.training.global_batch_size, 64);
  EXPECT_EQ(plan.training.precision, DType::Fp8);
  EXPECT_TRUE(plan.layout.overlap.tp);
  EXPECT_TRUE(planner::check(plan).broken.empty());
}

TEST(ImportTorchTitan, ComplaintsNameLineAndKey) {
  EXPECT_THAT(
      refusal(".toml", "[model]\nname = \"llama3\"\nflavor = \"9B\"\n", on("dgx_h100", 8)),
      AllOf(HasSubstr(".toml:3: model.flavor: llama3 9B is not known"), HasSubstr("llama3 8B")));
  EXPECT_THAT(refusal(".toml", "[model\nname = 1\n", on("dgx_h100", 8)),
              HasSubstr("not valid TOML"));
  EXPECT_THAT(refusal(".toml",
                      "[model]\nname = \"llama3\"\nflavor = \"8B\"\n[parallelism]\n"
                      "tensor_parallel_degree = 0\n",
                      on("dgx_h100", 8)),
              HasSubstr(".toml:5: parallelism.tensor_parallel_degree: 0 is outside"));
}

TEST(ImportNemo, ReferencesAreFollowed) {
  ImportOptions options = on("dgx_h100");
  options.vocab = 50257;
  const ImportedJob job = import_job(kJobs / "gpt_5b.yaml", options);
  const planner::Plan plan = plan_of(job);
  EXPECT_EQ(plan.model.ffn, 16384);
  EXPECT_EQ(plan.model.max_positions, 2048);
  EXPECT_TRUE(plan.model.dropout);
  EXPECT_EQ(plan.layout.dp, 16);
  EXPECT_EQ(plan.layout.zero_stage, 1);
  EXPECT_EQ(plan.layout.recompute, models::Recompute::Selective);
  EXPECT_EQ(plan.training.precision, DType::Bf16);
  EXPECT_TRUE(planner::check(plan).broken.empty());
}

TEST(ImportNemo, ComplaintsNameLineAndKey) {
  EXPECT_THAT(refusal(".yaml", "model:\n  num_layers: ${.layers}\n", on("dgx_h100", 8)),
              HasSubstr(".yaml:2: model.num_layers: ${.layers} leads nowhere"));
  EXPECT_THAT(refusal(".yaml", "model:\n  num_layers: ${model.num_layers}\n", on("dgx_h100", 8)),
              HasSubstr("leads in a circle"));
  EXPECT_THAT(refusal(".yaml", "model:\n  num_layers: 2.5\n", on("dgx_h100", 8)),
              HasSubstr(".yaml:2: model.num_layers: expected an integer, got \"2.5\""));
}

}  // namespace
}  // namespace foresail::scenarios
