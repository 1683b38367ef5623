#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "catalogue.h"
#include "foresail/base/error.h"

namespace foresail::models {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr const char* kSmall = "layers: 2\nhidden: 64\nheads: 4\nvocab: 256\n";

Model read(const std::string& text) {
  return read_model(Yaml::parse(text, "model.yaml"));
}

std::string refusal(const std::string& text) {
  try {
    read(text);
  } catch (const Error& problem) {
    EXPECT_EQ(problem.code(), ErrorCode::InvalidInput);
    return problem.what();
  }
  return "accepted";
}

TEST(ReadModel, DerivesWhatIsNotGiven) {
  const Model model = read(kSmall);
  EXPECT_EQ(model.name, "unnamed");
  EXPECT_EQ(model.kv_heads, 4);
  EXPECT_EQ(model.head_size, 16);
  EXPECT_EQ(model.ffn, 256);
  EXPECT_EQ(model.block, Block::Serial);
}

TEST(ReadModel, ReadsEveryKeyAndWritesItBack) {
  const Model model = read(
      "{name: odd, layers: 3, hidden: 96, heads: 4, kv_heads: 2, head_size: 32, ffn: 200,"
      " vocab: 1000, activation: swiglu, norm: rms_norm, positions: rotary,"
      " tied_embeddings: false, biases: false, dropout: true, block: parallel,"
      " attention: sliding_window, window: 12}");
  EXPECT_EQ(model.kv_heads, 2);
  EXPECT_EQ(model.head_size, 32);
  EXPECT_EQ(model.ffn, 200);
  EXPECT_EQ(model.window, 12);
  EXPECT_EQ(read(to_yaml(to_document(model))), model);
  const Model learned = read(std::string(kSmall) + "max_positions: 77\n");
  EXPECT_EQ(learned.max_positions, 77);
  EXPECT_EQ(read(to_yaml(to_document(learned))), learned);
}

TEST(ReadModel, WholeCatalogueRoundTrips) {
  for (const auto& entry : std::filesystem::directory_iterator(catalogue_folder())) {
    const Model model = read_model(Yaml::load(entry.path()));
    EXPECT_EQ(read(to_yaml(to_document(model))), model);
  }
}

TEST(ReadModel, RefusesUnknownKeys) {
  EXPECT_THAT(refusal(std::string(kSmall) + "hiden: 3\n"),
              testing::AllOf(StartsWith("model.yaml:5"), HasSubstr("hiden")));
}

TEST(ReadModel, RefusesMissingKeys) {
  EXPECT_THAT(refusal("layers: 2\nhidden: 64\nheads: 4\n"), HasSubstr("vocab"));
}

TEST(ReadModel, RefusesWrongTypes) {
  EXPECT_THAT(refusal("layers: two\nhidden: 64\nheads: 4\nvocab: 256\n"),
              testing::AllOf(StartsWith("model.yaml:1"), HasSubstr("layers")));
  EXPECT_THAT(refusal(std::string(kSmall) + "norm: batch_norm\n"),
              HasSubstr("\"batch_norm\" is not one of layer_norm, rms_norm"));
  EXPECT_THAT(refusal(std::string(kSmall) + "biases: 7\n"), HasSubstr("biases"));
  EXPECT_THAT(refusal("[1, 2]"), StartsWith("model.yaml:1"));
}

TEST(ReadModel, RefusesImpossibleValuesWithEveryTerm) {
  EXPECT_THAT(refusal("{layers: 2, hidden: 65, heads: 4, vocab: 9}"),
              HasSubstr("hidden 65 % heads 4 = 1, must be 0 unless head_size is given"));
  EXPECT_THAT(refusal(std::string(kSmall) + "kv_heads: 3\n"),
              HasSubstr("heads 4 % kv_heads 3 = 1, must be 0"));
  EXPECT_THAT(refusal(std::string(kSmall) + "window: 8\n"),
              HasSubstr("window 8 has no effect with attention full"));
  EXPECT_THAT(refusal(std::string(kSmall) + "attention: sliding_window\n"),
              HasSubstr("needs a window"));
  EXPECT_THAT(refusal(std::string(kSmall) + "positions: alibi\nmax_positions: 5\n"),
              HasSubstr("max_positions 5 has no effect with positions alibi"));
  EXPECT_THAT(refusal(std::string(kSmall) + "positions: rotary\nhead_size: 15\n"),
              HasSubstr("head_size 15 is odd"));
  EXPECT_THAT(refusal("{layers: 2, hidden: 0, heads: 4, vocab: 9}"),
              HasSubstr("hidden 0 is not between 1 and"));
  EXPECT_THAT(refusal("{layers: 2, hidden: 64, heads: 4, vocab: 99999999999}"),
              HasSubstr("vocab 99999999999 is not between 1 and"));
}

TEST(CheckModel, NamesTheModel) {
  Model model = read(kSmall);
  model.name = "toy";
  model.layers = 0;
  try {
    check(model);
    FAIL() << "accepted";
  } catch (const Error& problem) {
    EXPECT_THAT(problem.what(), HasSubstr("model toy: layers 0 is not between 1 and"));
  }
}

Model resolve(const std::string& text) {
  return resolve_model(Yaml::parse(text, "scenario.yaml"), {"nowhere", catalogue_folder()});
}

TEST(ResolveModel, AcceptsNamesAndMappings) {
  EXPECT_EQ(resolve("gpt3_175b").hidden, 12288);
  EXPECT_EQ(resolve(kSmall).hidden, 64);
}

TEST(ResolveModel, AcceptsPathsRelativeToTheFileThatNamesThem) {
  const std::filesystem::path folder = std::filesystem::path(testing::TempDir()) / "resolve_model";
  std::filesystem::create_directories(folder / "shapes");
  std::ofstream(folder / "shapes" / "toy.yaml") << kSmall;
  std::ofstream(folder / "scenario.yaml") << "model: shapes/toy.yaml\n";
  const Yaml scenario = Yaml::load(folder / "scenario.yaml");
  EXPECT_EQ(resolve_model(scenario.at("model"), {}).hidden, 64);
  std::filesystem::remove_all(folder);
}

TEST(ResolveModel, ReplacesKeysOfABase) {
  const Model model =
      resolve("{base: megascale_175b, block: parallel, attention: sliding_window, window: 1024}");
  Model expected = catalogue_model("megascale_175b_parallel_window");
  expected.name = "megascale_175b";
  EXPECT_EQ(model, expected);
}

TEST(ResolveModel, DerivesAnewWhatFollowedFromAReplacedSize) {
  const Model model = resolve("{base: gpt3_175b, hidden: 6144, heads: 64, positions: rotary}");
  EXPECT_EQ(model.head_size, 96);
  EXPECT_EQ(model.kv_heads, 64);
  EXPECT_EQ(model.ffn, 4 * 6144);
  EXPECT_EQ(model.max_positions, 0);
  EXPECT_EQ(model.layers, 96);
}

TEST(ResolveModel, NamesWhatItDidNotFind) {
  try {
    resolve("gpt9");
    FAIL() << "accepted";
  } catch (const Error& problem) {
    EXPECT_THAT(problem.what(),
                testing::AllOf(StartsWith("scenario.yaml:1"),
                               HasSubstr("\"gpt9\" is not a model of the catalogue"),
                               HasSubstr("nowhere")));
  }
  try {
    resolve("missing/model.yaml");
    FAIL() << "accepted";
  } catch (const Error& problem) {
    EXPECT_EQ(problem.code(), ErrorCode::NotFound);
    EXPECT_THAT(problem.what(), HasSubstr("missing/model.yaml"));
  }
}

}  // namespace
}  // namespace foresail::models
