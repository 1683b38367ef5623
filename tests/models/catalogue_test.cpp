#include "catalogue.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>

namespace foresail::models {
namespace {

std::vector<std::filesystem::path> catalogue_files() {
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(catalogue_folder())) {
    files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  return files;
}

TEST(Catalogue, EveryFileHoldsThePossibleModelOfItsName) {
  ASSERT_GE(catalogue_files().size(), 50U);
  for (const auto& file : catalogue_files()) {
    const Model model = read_model(Yaml::load(file));
    EXPECT_EQ(model.name, file.stem().string());
    EXPECT_TRUE(std::ranges::all_of(model.name, [](char c) {
      return std::islower(static_cast<unsigned char>(c)) != 0 ||
             std::isdigit(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '.';
    })) << model.name;
    EXPECT_NO_THROW(check(model));
  }
}

TEST(Catalogue, EveryFileNamesItsSource) {
  for (const auto& file : catalogue_files()) {
    EXPECT_TRUE(read_file(file).starts_with("# ")) << file;
  }
}

TEST(Catalogue, AgreesWithThePublishedRuns) {
  for (const Yaml& row : Yaml::load(data_file("published_shapes.yaml")).items()) {
    const Model model = catalogue_model(row.at("model").as_string());
    if (!row.find("layers")) continue;  // a run that prints no shape
    EXPECT_EQ(model.layers, row.at("layers").as_integer()) << row.where();
    EXPECT_EQ(model.hidden, row.at("hidden").as_integer()) << row.where();
    EXPECT_EQ(model.heads, row.at("heads").as_integer()) << row.where();
    if (const auto value = row.find("kv_heads")) {
      EXPECT_EQ(model.kv_heads, value->as_integer()) << row.where();
    }
    if (const auto value = row.find("ffn")) {
      EXPECT_EQ(model.ffn, value->as_integer()) << row.where();
    }
    if (const auto value = row.find("vocab")) {
      EXPECT_EQ(model.vocab, value->as_integer()) << row.where();
    }
    EXPECT_EQ(model.activation == Activation::SwiGlu, row.find("gated_mlp").has_value())
        << row.where();
  }
}

// llm-foundry prints the exact count of every run, position table included.
TEST(Catalogue, MeetsPrintedParameterCountsExactly) {
  int rows = 0;
  for (const Yaml& row : Yaml::load(data_file("published_shapes.yaml")).items()) {
    const auto printed = row.find("params");
    if (!printed) continue;
    const Model model = catalogue_model(row.at("model").as_string());
    const std::int64_t sequence_length = row.at("sequence_length").as_integer();
    EXPECT_EQ(count_parameters(model, sequence_length).total(), printed->as_integer())
        << row.where();
    ++rows;
  }
  EXPECT_EQ(rows, 59);
}

// The others print billions, rounded by their authors' own rules.
TEST(Catalogue, MeetsPrintedBillionsOfParameters) {
  for (const Yaml& row : Yaml::load(data_file("published_shapes.yaml")).items()) {
    const auto printed = row.find("params_b");
    if (!printed) continue;
    const Model model = catalogue_model(row.at("model").as_string());
    const double billions = static_cast<double>(count_parameters(model).total()) / 1e9;
    EXPECT_NEAR(billions / printed->as_number(), 1, 0.04) << row.where();
  }
}

TEST(Catalogue, MegaScaleDiffersFromItsBaselineInTheTwoPublishedSwitchesOnly) {
  for (const std::string size : {"175b", "530b"}) {
    Model model = catalogue_model("megascale_" + size + "_parallel_window");
    EXPECT_EQ(model.block, Block::Parallel);
    EXPECT_EQ(model.attention, Attention::SlidingWindow);
    model.name = "megascale_" + size;
    model.block = Block::Serial;
    model.attention = Attention::Full;
    model.window = 0;
    EXPECT_EQ(model, catalogue_model("megascale_" + size));
  }
}

}  // namespace
}  // namespace foresail::models
