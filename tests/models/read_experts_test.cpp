// Experts and latent attention in our schema and in Hugging Face's.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "catalogue.h"
#include "foresail/base/error.h"

namespace foresail::models {
namespace {

using ::testing::HasSubstr;

const std::string kDense = "{layers: 4, hidden: 64, heads: 4, vocab: 100, block: serial, ";

Model read(const std::string& text) {
  return read_model(Yaml::parse(text, "model.yaml"));
}

std::string refusal(const std::string& text) {
  try {
    read(text);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

/// The catalogue's model of the same sizes, under this one's name.
void expect_catalogue(Model model, const std::string& name) {
  Model known = catalogue_model(name);
  known.name = model.name;
  EXPECT_EQ(model, known);
}

TEST(ReadExperts, SizesFollowFromTheModel) {
  const Model model = read(kDense + "experts: {count: 8, per_token: 2, shared: 1}}");
  EXPECT_EQ(model.experts.ffn, 256);
  EXPECT_EQ(model.experts.shared_ffn, 256);
  EXPECT_EQ(model.experts.every, 1);
  EXPECT_EQ(model.experts.capacity_factor, 0);
}

TEST(ReadExperts, DocumentsReadBack) {
  for (const char* name : {"mixtral_8x7b", "deepseek_v3", "gpt3_175b"}) {
    const Model model = catalogue_model(name);
    EXPECT_EQ(read_model(Yaml::parse(to_yaml(to_document(model)), "model.yaml")), model);
  }
  EXPECT_FALSE(to_document(catalogue_model("gpt3_175b")).contains("experts"));
}

TEST(ReadExperts, ABaseKeepsWhatIsNotReplaced) {
  const Model model = resolve_model(
      Yaml::parse("{base: deepseek_v3, layers: 8, experts: {capacity_factor: 1.25}}", "model.yaml"),
      {catalogue_folder()});
  EXPECT_EQ(model.experts.count, 256);
  EXPECT_EQ(model.experts.capacity_factor, 1.25);
  EXPECT_EQ(model.latent.kv_rank, 512);
}

TEST(ReadExperts, WhatIsMissingOrUnknownIsNamed) {
  EXPECT_THAT(refusal(kDense + "experts: {count: 8}}"), HasSubstr("per_token"));
  EXPECT_THAT(refusal(kDense + "experts: {count: 8, per_token: 2, top_k: 2}}"), HasSubstr("top_k"));
  EXPECT_THAT(refusal(kDense + "experts: {count: 8, per_token: 9}}"),
              HasSubstr("per_token 9 is not between 1 and 8"));
  EXPECT_THAT(refusal(kDense + "latent_attention: {kv_rank: 32}}"), HasSubstr("rope_head_size"));
}

TEST(HuggingFaceExperts, ReadsMixtral) {
  expect_catalogue(read("{model_type: mixtral, num_hidden_layers: 32, hidden_size: 4096,"
                        " num_attention_heads: 32, num_key_value_heads: 8, vocab_size: 32000,"
                        " intermediate_size: 14336, num_local_experts: 8, num_experts_per_tok: 2,"
                        " hidden_act: silu, tie_word_embeddings: false, sliding_window: null}"),
                   "mixtral_8x7b");
}

TEST(HuggingFaceExperts, ReadsDeepSeek) {
  expect_catalogue(
      read("{model_type: deepseek_v3, num_hidden_layers: 61, hidden_size: 7168,"
           " num_attention_heads: 128, num_key_value_heads: 128, vocab_size: 129280,"
           " intermediate_size: 18432, moe_intermediate_size: 2048, n_routed_experts: 256,"
           " n_shared_experts: 1, num_experts_per_tok: 8, first_k_dense_replace: 3,"
           " moe_layer_freq: 1, q_lora_rank: 1536, kv_lora_rank: 512, qk_nope_head_dim: 128,"
           " qk_rope_head_dim: 64, v_head_dim: 128, hidden_act: silu}"),
      "deepseek_v3");
}

TEST(HuggingFaceExperts, ReadsQwen3) {
  expect_catalogue(read("{architectures: [Qwen3MoeForCausalLM], num_hidden_layers: 48,"
                        " hidden_size: 2048, num_attention_heads: 32, num_key_value_heads: 4,"
                        " head_dim: 128, vocab_size: 151936, intermediate_size: 6144,"
                        " moe_intermediate_size: 768, num_experts: 128, num_experts_per_tok: 8,"
                        " decoder_sparse_step: 1, mlp_only_layers: []}"),
                   "qwen3_30b_a3b");
}

TEST(HuggingFaceExperts, ReadsSparseStepsAndSharedExpertsOfQwen2) {
  const std::string qwen =
      "{model_type: qwen2_moe, num_hidden_layers: 4, hidden_size: 64, num_attention_heads: 4,"
      " vocab_size: 100, intermediate_size: 128, moe_intermediate_size: 32, num_experts: 8,"
      " num_experts_per_tok: 2, shared_expert_intermediate_size: 96, decoder_sparse_step: 2";
  const Model model = read(qwen + "}");
  EXPECT_EQ(model.experts.shared_ffn, 96);
  EXPECT_TRUE(model.experts.shared_gate);
  EXPECT_FALSE(has_experts(model, 0));
  EXPECT_TRUE(has_experts(model, 1));
  EXPECT_FALSE(has_experts(model, 2));
  EXPECT_TRUE(has_experts(model, 3));
  EXPECT_THAT(refusal(qwen + ", mlp_only_layers: [1]}"), HasSubstr("mlp_only_layers"));
}

}  // namespace
}  // namespace foresail::models
