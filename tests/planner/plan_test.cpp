#include "foresail/planner/plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "foresail/base/error.h"
#include "plans.h"

namespace foresail::planner {
namespace {

using testing::HasSubstr;

/// A folder of its own that vanishes with the test.
class PlanFile : public testing::Test {
 protected:
  PlanFile() {
    folder_ = std::filesystem::path(testing::TempDir()) /
              testing::UnitTest::GetInstance()->current_test_info()->name();
    std::filesystem::create_directories(folder_);
  }
  ~PlanFile() override { std::filesystem::remove_all(folder_); }

  std::filesystem::path path() const { return folder_ / "plan.yaml"; }

  std::string error_of_text(const std::string& text) const {
    write_file(path(), text);
    try {
      load_plan(path());
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::InvalidInput);
      return error.what();
    }
    return "no error";
  }

 private:
  std::filesystem::path folder_;
};

Plan sample() {
  Layout layout = pipeline(2, 2, 3);
  layout.tp = 2;
  layout.sequence_parallel = true;
  layout.zero_stage = 2;
  Plan plan = plan_of(plain_model(8), layout, 6);
  plan.cluster.device.peak_16 = FlopRate::teraflops(312);
  plan.cluster.device.peak_32 = FlopRate::teraflops(19.5);
  plan.cluster.device.memory_bandwidth = Bandwidth::gigabytes_per_second(2039);
  plan.cluster.device.nvlink = Bandwidth::gigabytes_per_second(300);
  plan.cluster.device.multiprocessors = 108;
  plan.cluster.device.provenance = "made up";
  plan.stack.host_per_kernel = Duration(36'000'000);
  plan.training.learning_rate = 0.1;  // no finite binary fraction
  plan.training.data = "text.txt";
  plan.seed = 7;
  return plan;
}

TEST_F(PlanFile, RoundTripsWithItsDigest) {
  const Plan plan = sample();
  save_plan(plan, path());
  const Plan read = load_plan(path());
  EXPECT_EQ(read.digest(), plan.digest());
  EXPECT_EQ(to_document(read), to_document(plan));
  EXPECT_EQ(read.model, plan.model);
  EXPECT_EQ(read.layout, plan.layout);
  EXPECT_EQ(read.stack, plan.stack);
  EXPECT_EQ(read.training, plan.training);
  EXPECT_EQ(read.seed, 7u);
  EXPECT_EQ(program_digest(lower(read)), program_digest(lower(plan)));
}

TEST_F(PlanFile, KeepsAPlacementOfItsOwn) {
  Plan plan = sample();
  EXPECT_EQ(to_document(plan)["placement"], "identity");
  plan.placement.device_of[RankId{0}] = DeviceId{3};
  plan.placement.device_of[RankId{3}] = DeviceId{0};
  EXPECT_EQ(to_document(plan)["placement"], Document({3, 1, 2, 0}));
  EXPECT_NE(plan.digest(), sample().digest());
  save_plan(plan, path());
  EXPECT_EQ(load_plan(path()).placement.device_of[RankId{0}], DeviceId{3});
}

TEST_F(PlanFile, KeepsHowTheDocumentsAreSplit) {
  Plan plan = sample();
  plan.training.data = "corpus";
  plan.training.data_split = {969, 30, 1};
  save_plan(plan, path());
  EXPECT_EQ(load_plan(path()).training, plan.training);
  EXPECT_EQ(load_plan(path()).digest(), plan.digest());
  const auto refuse = [](const std::string& data) {
    const std::string text = "{global_batch_size: 8, sequence_length: 64, data: " + data + "}";
    EXPECT_THROW(read_training(Yaml::parse(text, "test")), Error) << data;
  };
  refuse("{path: corpus, split: [1, -1]}");
  refuse("{path: corpus, split: [0, 1]}");
  refuse("{path: corpus, split: [1, 1, 1, 1]}");
  refuse("{path: corpus, split: []}");
  refuse("{split: [1]}");
}

/// Every scalar of the document, as a path.
void collect(const Document& node, const Document::json_pointer& at,
             std::vector<Document::json_pointer>& paths) {
  if (node.is_object()) {
    for (const auto& [key, value] : node.items()) collect(value, at / key, paths);
  } else {
    paths.push_back(at);
  }
}

/// Another value of the same kind.
Document changed(const Document& value) {
  if (value.is_boolean()) return !value.get<bool>();
  if (value.is_number_integer()) return value.get<std::int64_t>() + 1;
  if (value.is_number()) return value.get<double>() * 1.0000001 + 1e-9;
  const std::string text = value.get<std::string>();
  const std::size_t digit = text.find_first_of("0123456789");
  if (digit == std::string::npos) return text + "x";
  std::string other = text;
  other[digit] = text[digit] == '2' ? '3' : '2';
  return other;
}

TEST_F(PlanFile, AnyEditIsRefused) {
  const Document document = to_document(sample());
  std::vector<Document::json_pointer> paths;
  collect(document, Document::json_pointer(), paths);
  EXPECT_GT(paths.size(), 70u);
  int refused_by_digest = 0;
  for (const auto& at : paths) {
    Document edited = document;
    edited[at] = changed(document[at]);
    const std::string message = error_of_text(to_yaml(edited));
    EXPECT_THAT(message, HasSubstr("plan.yaml:")) << at.to_string();
    refused_by_digest +=
        message.ends_with("): the plan was edited, or another version of Foresail made it");
  }
  // The others are not even values that the key may have.
  EXPECT_GT(refused_by_digest, 55);
}

TEST_F(PlanFile, EditNamesBothDigests) {
  Document document = to_document(sample());
  const std::string stated = document["digest"];
  document["training"]["learning_rate"] = 0.2;
  Plan edited = sample();
  edited.training.learning_rate = 0.2;
  EXPECT_EQ(error_of_text(to_yaml(document)), path().string() + ": digest " + stated +
                                                  " does not match the contents (" +
                                                  edited.digest() +
                                                  "): the plan was edited, "
                                                  "or another version of Foresail made it");
}

// The digest is of canonical numbers: how a quantity is spelt does not matter.
TEST_F(PlanFile, SpellingOfUnitsIsNoEdit) {
  Document document = to_document(sample());
  document["cluster"]["device"]["memory"] = "80000 MB";
  write_file(path(), to_yaml(document));
  EXPECT_EQ(load_plan(path()).digest(), sample().digest());
  document["cluster"]["device"]["memory"] = "80001 MB";
  EXPECT_THAT(error_of_text(to_yaml(document)), HasSubstr("the plan was edited"));
}

TEST_F(PlanFile, BrokenLawsAreRefusedWithTheirTerms) {
  Plan plan = sample();
  plan.model.layers = 9;
  save_plan(plan, path());
  EXPECT_THAT(error_of_text(to_yaml(to_document(plan))),
              HasSubstr("layout: layers 9 % (pp 2 * v 2) = 1, must be 0"));
  plan = sample();
  plan.placement.device_of[RankId{0}] = DeviceId{1};
  EXPECT_THAT(error_of_text(to_yaml(to_document(plan))),
              HasSubstr("placement: ranks 0 and 1 are both placed on device 1"));
}

TEST_F(PlanFile, BadFilesAreRefusedWithKey) {
  Document document = to_document(sample());
  document["moddel"] = 1;
  EXPECT_THAT(error_of_text(to_yaml(document)), HasSubstr("moddel"));
  document = to_document(sample());
  document["foresail_plan"] = 2;
  EXPECT_THAT(error_of_text(to_yaml(document)), HasSubstr("foresail_plan"));
  document = to_document(sample());
  document.erase("digest");
  EXPECT_THAT(error_of_text(to_yaml(document)), HasSubstr("digest"));
  document = to_document(sample());
  document["placement"] = "random";
  EXPECT_THAT(error_of_text(to_yaml(document)), HasSubstr("placement"));
}

TEST_F(PlanFile, MissingFileIsNotFound) {
  try {
    load_plan(path());
    FAIL() << "loaded nothing";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::NotFound);
  }
}

std::string training_error(const std::string& text) {
  try {
    read_training(Yaml::parse(text, "scenario.yaml"));
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

TEST(Training, ReadsBackEqual) {
  const program::Training training = sample().training;
  EXPECT_EQ(read_training(Yaml::parse(to_yaml(to_document(training)), "t")), training);
  const program::Training least =
      read_training(Yaml::parse("{global_batch_size: 8, sequence_length: 16}", "t"));
  EXPECT_EQ(least.global_batch_size, 8);
  EXPECT_EQ(least.precision, DType::Bf16);
  EXPECT_EQ(least.gradient_dtype, DType::Fp32);
}

TEST(Training, BadInputNamesTheKey) {
  EXPECT_THAT(training_error("sequence_length: 4"), HasSubstr("global_batch_size"));
  const std::string start = "global_batch_size: 8\nsequence_length: 16\n";
  EXPECT_THAT(training_error(start + "precision: int64"), HasSubstr("scenario.yaml:3: precision"));
  EXPECT_THAT(training_error(start + "learning_rate: -1"), HasSubstr("must not be negative"));
  EXPECT_THAT(training_error(start + "learning_rate: 1e300"),
              HasSubstr("learning_rate: must be at most 1e+30"));
  EXPECT_THAT(training_error(start + "optimizer: sgd"), HasSubstr("adam, adamw, lamb"));
  EXPECT_THAT(training_error(start + "steps: 0"), HasSubstr("steps"));
  EXPECT_THAT(training_error(start + "weight_decay: 0.1"),
              HasSubstr("weight_decay: needs optimizer adamw or lamb, but it is adam"));
}

TEST(Training, ALearningRateThatFallsSaysUntilWhen) {
  const std::string start = "global_batch_size: 8\nsequence_length: 16\n";
  EXPECT_THAT(training_error(start + "decay_steps: 10"),
              HasSubstr("decay_steps: needs learning_rate_decay linear or cosine"));
  EXPECT_THAT(training_error(start + "learning_rate_decay: cosine\nwarmup_steps: 5"),
              HasSubstr("needs decay_steps above warmup_steps 5, but decay_steps is 0"));
  EXPECT_THAT(training_error(start + "learning_rate_decay: linear\ndecay_steps: 5\n"
                                     "learning_rate_min: 1"),
              HasSubstr("learning_rate_min: must be at most learning_rate 0.0003"));
  const program::Training training = read_training(
      Yaml::parse("{global_batch_size: 8, sequence_length: 16, optimizer: adamw, weight_decay: 0.1,"
                  " learning_rate_decay: cosine, warmup_steps: 2, decay_steps: 9,"
                  " learning_rate_min: 1e-5}",
                  "t"));
  EXPECT_EQ(training.decay_steps, 9);
  EXPECT_EQ(read_training(Yaml::parse(to_yaml(to_document(training)), "t")), training);
}

TEST(Training, KeysThatSayNothingLeaveOlderDigestsAlone) {
  const Document document = to_document(sample().training);
  for (const char* key : {"weight_decay", "warmup_steps", "decay_steps", "learning_rate_decay",
                          "learning_rate_min"}) {
    EXPECT_FALSE(document.contains(key)) << key;
  }
}

}  // namespace
}  // namespace foresail::planner
