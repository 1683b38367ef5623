// NeMo's configuration of GPT models (megatron_gpt_config.yaml and what the NeMo Framework Launcher
// writes); defaults are NeMo's.
#include <fmt/format.h>

#include <algorithm>

#include "import_formats.h"

namespace foresail::scenarios {
namespace {

void read_model(ForeignKeys& keys, const ImportOptions& options, JobParts& parts) {
  Document& model = parts.model;
  model["name"] = "imported";
  model["layers"] = keys.required("model.num_layers");
  model["hidden"] = keys.required("model.hidden_size");
  model["heads"] = keys.required("model.num_attention_heads");
  if (const auto groups = keys.integer("model.num_query_groups")) model["kv_heads"] = *groups;
  if (const auto size = keys.integer("model.kv_channels")) model["head_size"] = *size;
  if (const auto ffn = keys.integer("model.ffn_hidden_size")) model["ffn"] = *ffn;
  const std::string activation = keys.text("model.activation").value_or("gelu");
  const bool is_gated = activation.find("swiglu") != std::string::npos;
  if (!is_gated && activation.find("gelu") == std::string::npos) {
    keys.fail("model.activation", fmt::format("\"{}\" is not gelu or swiglu", activation));
  }
  if (!is_gated && activation.find("geglu") != std::string::npos) {
    keys.fail("model.activation", "geglu is not known");
  }
  model["activation"] = is_gated ? "swiglu" : "gelu";
  const std::string norm = keys.text("model.normalization").value_or("layernorm1p");
  model["norm"] = norm.find("rms") != std::string::npos ? "rms_norm" : "layer_norm";
  const std::string positions =
      keys.text("model.position_embedding_type").value_or("learned_absolute");
  if (positions != "learned_absolute" && positions != "rope" && positions != "alibi") {
    keys.fail("model.position_embedding_type", fmt::format("\"{}\" is not known", positions));
  }
  model["positions"] = positions == "rope" ? "rotary" : positions == "alibi" ? "alibi" : "learned";
  const auto positions_max = keys.integer("model.max_position_embeddings");
  if (positions_max && model["positions"] == "learned") model["max_positions"] = *positions_max;
  model["vocab"] = vocabulary(keys, "model.override_vocab_size", options);
  model["tied_embeddings"] = keys.flag("model.share_embeddings_and_output_weights", true);
  model["biases"] = keys.flag("model.bias", true);
  model["dropout"] = keys.number("model.hidden_dropout").value_or(0.1) > 0 ||
                     keys.number("model.attention_dropout").value_or(0.1) > 0;
  if (const auto experts = keys.integer("model.num_moe_experts")) {
    model["experts"] = {{"count", *experts},
                        {"per_token", keys.integer("model.moe_router_topk").value_or(2)}};
  }
}

void read_layout(ForeignKeys& keys, JobParts& parts) {
  Document& layout = parts.layout;
  const std::int64_t tp = keys.integer("model.tensor_model_parallel_size").value_or(1);
  const std::int64_t pp = keys.integer("model.pipeline_model_parallel_size").value_or(1);
  const std::int64_t v = keys.integer("model.virtual_pipeline_model_parallel_size").value_or(1);
  layout["tp"] = tp;
  layout["pp"] = pp;
  layout["v"] = v;
  layout["cp"] = keys.integer("model.context_parallel_size").value_or(1);
  if (layout["cp"] != 1) layout["cp_kind"] = "ring";
  const std::int64_t ep = keys.integer("model.expert_model_parallel_size").value_or(1);
  if (ep > 1) layout["ep"] = ep;
  layout["microbatch_size"] = keys.integer("model.micro_batch_size").value_or(1);
  layout["sequence_parallel"] = tp > 1 && keys.flag("model.sequence_parallel");
  const std::string optimizer = keys.text("model.optim.name").value_or("fused_adam");
  const bool is_core = optimizer == "mcore_distributed_optim";  // Megatron-Core's, of Adam
  if (!is_core && optimizer.find("adam") == std::string::npos) {
    keys.fail("model.optim.name", fmt::format("\"{}\" is not an Adam", optimizer));
  }
  layout["zero_stage"] = is_core || optimizer.starts_with("distributed") ? 1 : 0;
  const std::string granularity =
      keys.text("model.activations_checkpoint_granularity").value_or("none");
  if (granularity == "full") {
    layout["recompute"] = full_recomputation(keys, "model.activations_checkpoint_method",
                                             "model.activations_checkpoint_num_layers");
  } else if (granularity == "selective") {
    layout["recompute"] = "selective";
  }
  layout["overlap"] = {{"tp", tp > 1 && keys.flag("model.ub_tp_comm_overlap")},
                       {"pp", v > 1 && keys.flag("model.overlap_p2p_comm")}};
  const planner::DataMessages asked(keys.flag("model.optim.overlap_grad_sync"),
                                    keys.flag("model.optim.overlap_param_sync"));
  const bool is_sharded = layout["zero_stage"] != 0;
  if (asked.parameters && (!asked.gradients || !is_sharded)) {
    parts.notes.push_back(
        "NeMo refuses overlap_param_sync without overlap_grad_sync and a distributed optimizer");
  }
  // NeMo hands both to Megatron-Core's interleaved schedule, which starts them on all stages.
  put_data_overlap(parts, {asked.gradients, asked.parameters && is_sharded}, true);
}

void read_training(ForeignKeys& keys, JobParts& parts) {
  Document& training = parts.training;
  if (const auto batch = keys.integer("model.global_batch_size")) {
    training["global_batch_size"] = *batch;
  } else {
    parts.local_batch = parts.layout["microbatch_size"].get<std::int64_t>();
  }
  training["sequence_length"] = keys.required("model.encoder_seq_length");
  const std::string precision = keys.text("trainer.precision").value_or("32");
  const bool is_16 = precision.find("16") != std::string::npos;
  const bool is_bf16 = precision.find("bf16") != std::string::npos;
  const bool is_fp8 = keys.flag("model.fp8");
  training["precision"] = is_fp8 ? "fp8" : is_bf16 ? "bf16" : is_16 ? "fp16" : "fp32";
  const std::string gradients = keys.text("model.optim.grad_sync_dtype").value_or("fp32");
  training["gradient_dtype"] = gradients.starts_with("bf") ? "bf16" : "fp32";
  training["optimizer"] = "adam";
  if (const auto rate = keys.number("model.optim.lr")) training["learning_rate"] = *rate;
  training["clip"] = keys.number("trainer.gradient_clip_val").value_or(0.0);
}

void read_stack(ForeignKeys& keys, JobParts& parts) {
  const bool is_te = keys.flag("model.transformer_engine");
  parts.stack["flash_attention"] = keys.flag("model.use_flash_attention") || is_te;
  parts.stack["fused_kernels"] = keys.flag("model.bias_dropout_add_fusion", true) &&
                                 keys.flag("model.masked_softmax_fusion", true);
  parts.stack["fused_cross_entropy"] = keys.flag("model.cross_entropy_loss_fusion", is_te);
}

}  // namespace

JobParts read_nemo(ForeignKeys& keys, const ImportOptions& options) {
  JobParts parts;
  read_model(keys, options, parts);
  read_layout(keys, parts);
  read_training(keys, parts);
  read_stack(keys, parts);
  const auto devices = keys.integer("trainer.devices");
  const auto nodes = keys.integer("trainer.num_nodes");
  if (devices && nodes) {
    parts.gpus = static_cast<int>(std::min<std::int64_t>(*devices * *nodes, 1 << 22));
  }
  return parts;
}

}  // namespace foresail::scenarios
