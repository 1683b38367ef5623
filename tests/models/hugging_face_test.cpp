#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "catalogue.h"
#include "foresail/base/error.h"

namespace foresail::models {
namespace {

using ::testing::HasSubstr;

Model read(const std::string& name) {
  return read_model(Yaml::load(data_file(name)));
}

std::string refusal(const std::string& text) {
  try {
    read_model(Yaml::parse(text, "config.json"));
  } catch (const Error& problem) {
    EXPECT_EQ(problem.code(), ErrorCode::InvalidInput);
    return problem.what();
  }
  return "accepted";
}

TEST(HuggingFace, ReadsGpt2) {
  Model model = read("gpt2.json");
  EXPECT_EQ(model.name, "gpt2");
  model.name = "gpt2_small";
  EXPECT_EQ(model, catalogue_model("gpt2_small"));
}

TEST(HuggingFace, ReadsLlama) {
  Model model = read("llama.json");
  EXPECT_EQ(model.name, "example/Llama-3-8B");
  model.name = "llama3_8b";
  EXPECT_EQ(model, catalogue_model("llama3_8b"));
}

TEST(HuggingFace, ReadsMistralWithItsWindow) {
  const Model model = read("mistral.json");
  EXPECT_EQ(model.attention, Attention::SlidingWindow);
  EXPECT_EQ(model.window, 4096);
  EXPECT_EQ(model.kv_heads, 8);
  EXPECT_EQ(model.head_size, 128);
  EXPECT_EQ(model.activation, Activation::SwiGlu);
  EXPECT_EQ(count_parameters(model).total(), 7'241'732'096);  // as published
}

TEST(HuggingFace, ReadsGptNeoxAsAParallelBlock) {
  const Model model = read("gpt_neox.json");
  EXPECT_EQ(model.block, Block::Parallel);
  EXPECT_EQ(model.positions, Positions::Rotary);
  EXPECT_FALSE(model.tied_embeddings);
  EXPECT_TRUE(model.biases);
  EXPECT_EQ(model.ffn, 24576);
  // 20,554,567,680 as published; the second norm of the 44 layers is not in our block.
  EXPECT_EQ(count_parameters(model).total(), 20'554'567'680 - 44 * 2 * 6144);
}

TEST(HuggingFace, ReadsQwen2WhoseWindowIsSwitchedOff) {
  const Model model = read("qwen2.json");
  EXPECT_EQ(model.attention, Attention::Full);
  EXPECT_TRUE(model.tied_embeddings);
  EXPECT_EQ(model.kv_heads, 2);
  // 494,032,768 as published; the biases of q, k and v are left out.
  EXPECT_EQ(count_parameters(model).total(), 494'032'768 - 24 * (896 + 2 * 128));
}

TEST(HuggingFace, ReadsMpt) {
  const Model model = read("mpt.json");
  EXPECT_EQ(model.positions, Positions::Alibi);
  EXPECT_FALSE(model.biases);
  EXPECT_TRUE(model.tied_embeddings);
  EXPECT_EQ(model.ffn, 16384);
  EXPECT_EQ(model.max_positions, 0);
}

TEST(HuggingFace, IsKnownByItsArchitectureAlone) {
  const Model model = read_model(Yaml::parse(
      "{\"architectures\": [\"GPT2LMHeadModel\"], \"n_layer\": 2, \"n_embd\": 64, \"n_head\": 4,"
      " \"vocab_size\": 100, \"n_positions\": 32, \"resid_pdrop\": 0, \"attn_pdrop\": 0}",
      "config.json"));
  EXPECT_EQ(model.ffn, 256);
  EXPECT_EQ(model.max_positions, 32);
  EXPECT_FALSE(model.dropout);
}

TEST(HuggingFace, RefusesExpertsInKindsWithoutThem) {
  EXPECT_THAT(refusal("{\"model_type\": \"llama\", \"num_local_experts\": 8}"),
              HasSubstr("\"llama\" with experts is a mixture of experts"));
}

TEST(HuggingFace, RefusesOtherKindsByName) {
  EXPECT_THAT(refusal("{\"model_type\": \"t5\"}"),
              HasSubstr("\"t5\" is not one of gpt2, gpt_neox, llama, mistral, mpt, qwen2"));
  EXPECT_THAT(refusal("{\"architectures\": []}"), HasSubstr("names no architecture"));
}

TEST(HuggingFace, RefusesWhatOurModelCannotSay) {
  const std::string llama =
      "\"num_hidden_layers\": 2, \"hidden_size\": 64, \"num_attention_heads\": 4,"
      " \"intermediate_size\": 128, \"vocab_size\": 100";
  EXPECT_THAT(refusal("{\"model_type\": \"llama\", " + llama + ", \"attention_bias\": true}"),
              HasSubstr("attention_bias and mlp_bias differ"));
  EXPECT_THAT(refusal("{\"model_type\": \"llama\", " + llama + ", \"hidden_act\": \"relu\"}"),
              HasSubstr("activation \"relu\" is not one of gelu, silu"));
  EXPECT_THAT(refusal("{\"model_type\": \"qwen2\", " + llama +
                      ", \"use_sliding_window\": true, \"max_window_layers\": 1}"),
              HasSubstr("a window from layer 1 of 2 on"));
}

TEST(HuggingFace, RefusesWrongTypesAndImpossibleShapes) {
  EXPECT_THAT(refusal("{\"model_type\": \"gpt2\", \"n_layer\": \"many\"}"), HasSubstr("n_layer"));
  EXPECT_THAT(refusal("{\"model_type\": \"gpt2\", \"n_layer\": 2, \"n_embd\": 65, \"n_head\": 4,"
                      " \"vocab_size\": 9, \"n_positions\": 8}"),
              HasSubstr("hidden 65 % heads 4 = 1"));
  EXPECT_THAT(refusal("{\"model_type\": \"gpt2\", \"n_layer\": 2}"), HasSubstr("n_embd"));
}

}  // namespace
}  // namespace foresail::models
