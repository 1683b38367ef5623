// Weights under Hugging Face's names: which models have them, what files are refused, and that the
// file does not depend on the layout. FORESAIL_FUZZ_ROUNDS sets the number of damaged files.
#include "foresail/runtime/weights.h"

#include <gmock/gmock.h>

#include <cmath>

#include "../base/mutate.h"
#include "foresail/base/error.h"
#include "fuzz_rounds.h"
#include "safetensors.h"
#include "scratch_folder.h"
#include "thread_job.h"
#include "token_files.h"
#include "worker_job.h"

namespace foresail::testing {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

class Weights : public ::testing::Test {
 protected:
  /// A vocabulary of 300 is padded to 384 with tp 1 and to 512 with tp 2.
  /// Adam moves a weight by the learning rate however small its gradient, and rounding decides the
  /// direction of the smallest: at 1e-5 that stays under 1e-6, and a missing update does not.
  static runtime::Job job(const planner::Layout& layout, const std::string& model, bool is_llama) {
    return cli::make_job(
        make_plan({.layout = layout, .model = model, .change = [is_llama](planner::Plan& plan) {
                     plan.model.vocab = 300;
                     plan.training.learning_rate = 1e-5;
                     if (is_llama) use_llama_parts(plan);
                   }}));
  }
  /// Trains, from `start` unless it is empty, and returns the losses.
  static std::vector<double> train(const runtime::Job& job, int steps, const fs::path& start,
                                   const fs::path& end) {
    runtime::create_weights(end, job.model, job.training.sequence_length);
    JobHooks hooks;
    if (!start.empty()) {
      hooks.before = [&](runtime::Trainer& trainer, RankId) { trainer.read_weights(start); };
    }
    hooks.after = [&](runtime::Trainer& trainer, RankId) { trainer.write_weights(end); };
    std::vector<double> losses;
    const std::vector<RankResult> ranks = run_job(job, steps, hooks);
    for (const runtime::StepSummary& step : ranks.front().steps) {
      losses.push_back(step.loss);
    }
    return losses;
  }
  static std::vector<float> values(const runtime::Safetensors& file, const std::string& name) {
    const runtime::StoredTensor& tensor = file.tensors().at(name);
    std::vector<float> all(static_cast<std::size_t>(tensor.elements()));
    file.read(tensor, 0, all);
    return all;
  }
  static double largest_difference(const fs::path& one, const fs::path& other) {
    const runtime::Safetensors first(one), second(other);
    EXPECT_EQ(first.tensors().size(), second.tensors().size());
    double largest = 0;
    for (const auto& [name, tensor] : first.tensors()) {
      const std::vector<float> a = values(first, name), b = values(second, name);
      for (std::size_t i = 0; i < a.size(); ++i) {
        largest = std::max(largest, static_cast<double>(std::abs(a[i] - b[i])));
      }
    }
    return largest;
  }
  std::string refusal(const std::string& contents) const {
    const fs::path path = folder_ / "bad.safetensors";
    write_file(path, contents);
    try {
      const runtime::Safetensors file(path);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::InvalidInput);
      return error.what();
    }
    return "accepted";
  }

  const fs::path folder_ = test::scratch_folder();
};

std::vector<planner::Layout> layouts() {
  std::vector<planner::Layout> all(5);
  all[0].tp = 2;
  all[0].pp = 2;
  all[1].tp = 2;
  all[1].sequence_parallel = true;
  all[1].dp = 2;
  all[1].zero_stage = 2;
  all[2].dp = 2;
  all[2].zero_stage = 1;
  all[2].overlap.dp = true;
  all[3].pp = 2;
  all[3].v = 2;
  all[3].schedule = planner::ScheduleKind::Interleaved;
  all[3].overlap.pp = true;
  all[4].dp = 2;
  all[4].cp = 2;
  all[4].zero_stage = 3;
  all[4].shard_size = 2;
  return all;
}

TEST_F(Weights, AreTheSameFileInEveryLayoutAndStartAnyOther) {
  struct Case {
    const char* model;
    bool is_llama;
  };
  for (const Case& kind : {Case{"gpt_tiny", false}, {"gpt_tiny_tied", false}, {"gpt_tiny", true}}) {
    const runtime::Job alone = job({}, kind.model, kind.is_llama);
    const fs::path first = folder_ / "first", second = folder_ / "second", end = folder_ / "end";
    train(alone, 1, {}, first);
    const std::vector<double> reference = train(alone, 1, first, end);
    for (const planner::Layout& layout : layouts()) {
      const runtime::Job other = job(layout, kind.model, kind.is_llama);
      train(other, 1, {}, second);
      EXPECT_LT(largest_difference(first, second), 1e-6) << kind.model << " " << describe(layout);
      const std::vector<double> losses = train(other, 1, first, second);
      EXPECT_NEAR(losses.front(), reference.front(), 1e-6) << describe(layout);
      EXPECT_LT(largest_difference(end, second), 1e-6) << kind.model << " " << describe(layout);
    }
  }
}

TEST_F(Weights, GoThroughUnchangedWithoutAStep) {
  const runtime::Job alone = job({}, "gpt_tiny", false);
  planner::Layout layout;
  layout.tp = 2;
  layout.pp = 2;
  train(alone, 0, {}, folder_ / "first");
  train(job(layout, "gpt_tiny", false), 0, folder_ / "first", folder_ / "second");
  EXPECT_EQ(read_file(folder_ / "first"), read_file(folder_ / "second"));
}

TEST_F(Weights, OfBf16AreTheFp32Masters) {
  const fs::path first = folder_ / "first", second = folder_ / "second";
  train(job({}, "gpt_tiny", false), 0, {}, first);
  for (const planner::Layout& layout : layouts()) {
    SCOPED_TRACE(describe(layout));
    planner::Plan plan = make_plan({.layout = layout});
    plan.model.vocab = 300;
    plan.training.precision = DType::Bf16;
    const runtime::Job rounded = cli::make_job(plan);
    train(rounded, 0, {}, second);
    EXPECT_EQ(read_file(first), read_file(second));  // the initial ones are not rounded
    train(rounded, 0, first, second);
    EXPECT_EQ(read_file(first), read_file(second));  // nor are those that are read
  }
}

TEST_F(Weights, TheConfigIsReadBackAsTheModel) {
  for (const auto& [is_llama, has_dropout] : {std::pair{false, false}, std::pair{true, false},
                                              std::pair{false, true}, std::pair{true, true}}) {
    models::Model model = job({}, "gpt_tiny", is_llama).model;
    model.dropout = has_dropout;
    const std::string text = runtime::hugging_face_config(model, 64).dump();
    models::Model read = models::read_model(Yaml::parse(text, "config.json"));
    read.name = model.name;
    EXPECT_EQ(read, model);
  }
}

TEST_F(Weights, AModelOfNeitherArchitectureIsRefusedWithItsKeys) {
  models::Model model = job({}, "gpt_tiny", false).model;
  model.positions = models::Positions::Rotary;
  model.block = models::Block::Parallel;
  try {
    runtime::architecture_of(model);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::Unsupported);
    EXPECT_STREQ(error.what(),
                 "weights: no architecture of Hugging Face fits the model: GPT-2 differs in "
                 "positions, block, Llama in norm, activation, biases, block");
  }
}

TEST_F(Weights, AFileOfAnotherModelIsRefusedWithTheTensor) {
  models::Model model = job({}, "gpt_tiny", false).model;
  const fs::path path = folder_ / "model.safetensors";
  runtime::create_weights(path, model, 64);
  runtime::check_weights(path, model, 64);
  const auto refuse = [&](const models::Model& other) -> std::string {
    try {
      runtime::check_weights(path, other, 64);
    } catch (const Error& error) {
      return error.what();
    }
    return "accepted";
  };
  models::Model other = model;
  other.layers = 5;
  EXPECT_EQ(refuse(other), path.string() + ": transformer.h.4.ln_1.weight is missing");
  other.layers = 3;
  EXPECT_EQ(refuse(other),
            path.string() + ": transformer.h.3.attn.c_attn.bias is no tensor of the model");
  other = model;
  other.vocab = 301;
  EXPECT_EQ(refuse(other), path.string() +
                               ": transformer.wte.weight is [300, 128], but the "
                               "model's is [301, 128]");
}

TEST_F(Weights, HalfPrecisionIsRead) {
  // 1.5, -2, 2^-24 (the smallest subnormal), 65504 (the largest) in F16; 1.5 and -3 in BF16.
  std::string data;
  for (const int half : {0x3e00, 0xc000, 0x0001, 0x7bff, 0x3fc0, 0xc040}) {
    data += raw(static_cast<std::uint16_t>(half));
  }
  const std::string header = R"({"a":{"dtype":"F16","shape":[4],"data_offsets":[0,8]},)"
                             R"("b":{"dtype":"BF16","shape":[2],"data_offsets":[8,12]}})";
  write_file(folder_ / "half", raw(static_cast<std::uint64_t>(header.size())) + header + data);
  const runtime::Safetensors file(folder_ / "half");
  EXPECT_EQ(values(file, "a"), (std::vector<float>{1.5f, -2.0f, 0x1p-24f, 65504.0f}));
  EXPECT_EQ(values(file, "b"), (std::vector<float>{1.5f, -3.0f}));
}

TEST_F(Weights, WhatIsWrongWithAFileIsSaid) {
  const auto with = [&](const std::string& header, std::size_t bytes) {
    return refusal(raw(static_cast<std::uint64_t>(header.size())) + header +
                   std::string(bytes, '\0'));
  };
  EXPECT_THAT(refusal("short"), HasSubstr("5 bytes are no safetensors file"));
  EXPECT_THAT(refusal(raw(~std::uint64_t{0})), HasSubstr("a header of 18446744073709551615 bytes"));
  EXPECT_THAT(with("[]", 0), HasSubstr("no JSON object"));
  EXPECT_THAT(with("{", 0), HasSubstr("bad.safetensors:1"));
  EXPECT_THAT(with(R"({"a":{"dtype":"F32"}})", 0), HasSubstr("a: expected dtype, shape"));
  EXPECT_THAT(with(R"({"a":{"dtype":"F64","shape":[1],"data_offsets":[0,8]}})", 8),
              HasSubstr("a: dtype F64 is not one of"));
  EXPECT_THAT(with(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}})", 4),
              HasSubstr("a: 2 elements of F32 are not bytes 0 to 4 of 4"));
  EXPECT_THAT(
      with(R"({"a":{"dtype":"F32","shape":[1073741824,1073741824,4],"data_offsets":[0,4]}})", 4),
      HasSubstr("more than 2^60 elements"));
  EXPECT_THAT(with(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})", 8),
              HasSubstr("a gap or an overlap"));
  EXPECT_THAT(with(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})", 6),
              HasSubstr("the tensors end at byte"));
}

TEST_F(Weights, ADamagedFileIsReadOrRefused) {
  const runtime::SafetensorsHead head =
      runtime::make_head({{"first", {3, 4}}, {"second", {5}}, {"third", {2, 2}}});
  std::string good = head.bytes;
  good.resize(static_cast<std::size_t>(head.file_bytes), '\x11');
  ASSERT_EQ(refusal(good), "accepted");
  const std::vector<std::string> pieces = {"-1",   "99999999999",         "[", "}", "\"F16\"",
                                           "null", raw(~std::uint64_t{0})};
  RandomStream random = Rng(17).stream("damage");
  int accepted = 0;
  for (int round = 0; round < test::fuzz_rounds(3000); ++round) {
    write_file(folder_ / "damaged", test::mutate(good, pieces, 16, random));
    try {
      const runtime::Safetensors file(folder_ / "damaged");
      for (const auto& [name, tensor] : file.tensors()) values(file, name);
      ++accepted;
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr("damaged")) << "round " << round;
    }
  }
  EXPECT_GT(accepted, 0);
  EXPECT_LT(accepted, test::fuzz_rounds(3000));
}

}  // namespace
}  // namespace foresail::testing
