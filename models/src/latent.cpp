#include "latent.h"

#include <fmt/format.h>

#include "linear.h"
#include "shape.h"

namespace foresail::models {
namespace {

constexpr std::int64_t kWidthMax = 1 << 20;

struct Projections {
  Linear q_down, q_up, kv_down, kv_up;  ///< without a query rank, q_up projects the input itself
};

// Keys' turned part stands beside the latent: it is gathered with it.
Projections projections_of(const Share& share, const Model& model) {
  const LatentAttention& latent = model.latent;
  const DType dtype = share.linear_dtype;
  const std::int64_t down = latent.kv_rank + latent.rope_head_size;
  const bool has_rank = latent.query_rank > 0;
  const std::int64_t up = latent_up_width(model) / (model.heads / share.heads);
  Projections made;
  made.q_down = {.name = "q_down", .in = share.hidden, .out = latent.query_rank, .dtype = dtype};
  made.q_up = {.name = has_rank ? "q_up" : "q",
               .in = has_rank ? latent.query_rank : share.hidden,
               .out = share.query_width,
               .dtype = dtype,
               .exchanged = latent.query_rank};
  made.kv_down = {.name = "kv_down", .in = share.hidden, .out = down, .dtype = dtype};
  made.kv_up = {
      .name = "kv_up", .in = latent.kv_rank, .out = up, .dtype = dtype, .exchanged = down};
  made.q_down.tokens = share.shard_tokens;
  made.kv_down.tokens = share.shard_tokens;
  return made;
}

void norm(PassKernels& pass, const std::string& name, std::int64_t width, std::int64_t times) {
  const Share& share = pass.share();
  pass.memory_bound(KernelKind::Norm, name, share.shard_tokens * width * times * share.element);
}

}  // namespace

std::optional<std::string> find_impossible_latent(const Model& model) {
  const LatentAttention& latent = model.latent;
  if (latent == LatentAttention{}) return std::nullopt;
  struct Bound {
    const char* name;
    std::int64_t value, low;
  };
  for (const Bound& bound : {Bound{"kv_rank", latent.kv_rank, 1},
                             {"query_rank", latent.query_rank, 0},
                             {"rope_head_size", latent.rope_head_size, 1},
                             {"value_head_size", latent.value_head_size, 1}}) {
    if (bound.value >= bound.low && bound.value <= kWidthMax) continue;
    return fmt::format("latent_attention: {} {} is not between {} and {}", bound.name, bound.value,
                       bound.low, kWidthMax);
  }
  if (model.kv_heads != model.heads) {
    return fmt::format("latent_attention makes a key for each of {} heads, but kv_heads is {}",
                       model.heads, model.kv_heads);
  }
  if (model.positions != Positions::Rotary) {
    return fmt::format("latent_attention needs positions rotary, but they are {}",
                       to_string(model.positions));
  }
  if (latent.rope_head_size % 2 != 0) {
    return fmt::format(
        "latent_attention: rope_head_size {} is odd, but rotary positions turn pairs",
        latent.rope_head_size);
  }
  if (model.biases) return "latent_attention has no biases, but biases is true";
  if (model.block == Block::Parallel) {
    return "latent_attention needs block serial, but it is parallel";
  }
  return std::nullopt;
}

void latent_forward(PassKernels& pass, const Model& model) {
  const Projections linears = projections_of(pass.share(), model);
  if (model.latent.query_rank > 0) {
    plain_forward(pass, linears.q_down);
    norm(pass, "q_norm", model.latent.query_rank, 2);
  }
  plain_forward(pass, linears.kv_down);
  norm(pass, "kv_norm", model.latent.kv_rank, 2);
  column_forward(pass, linears.q_up);
  column_forward(pass, linears.kv_up);
}

void latent_backward(PassKernels& pass, const Model& model) {
  const Projections linears = projections_of(pass.share(), model);
  column_backward(pass, {linears.kv_up});
  column_backward(pass, {linears.q_up});
  norm(pass, "kv_norm.backward", model.latent.kv_rank, 4);
  plain_backward(pass, linears.kv_down);
  if (model.latent.query_rank > 0) {
    norm(pass, "q_norm.backward", model.latent.query_rank, 4);
    plain_backward(pass, linears.q_down);
  }
}

std::int64_t latent_rope_bytes(const Share& share, const Model& model) {
  const std::int64_t rope = model.latent.rope_head_size;
  const std::int64_t queries = 2 * share.heads * rope;
  const std::int64_t keys = share.heads * model.head_size + rope + share.key_width;
  return share.tokens * (queries + keys) * share.element;
}

std::vector<SavedTensor> latent_saved(const Model& model, const Share& share, NormOutput norm) {
  const LatentAttention& latent = model.latent;
  const auto bytes = [&](std::int64_t width, std::int64_t element) {
    return Bytes(share.shard_tokens * width * element);
  };
  std::vector<SavedTensor> saved;
  if (norm == NormOutput::Kept) {
    saved.push_back({"q_down.input", bytes(share.hidden, share.linear_element)});  // kv_down's too
  }
  if (latent.query_rank > 0) {
    saved.push_back({"q_norm.input", bytes(latent.query_rank, share.element)});
    saved.push_back({"q_up.input", bytes(latent.query_rank, share.linear_element)});
  }
  saved.push_back({"kv_norm.input", bytes(latent.kv_rank, share.element)});
  saved.push_back({"kv_up.input", bytes(latent.kv_rank, share.linear_element)});
  return saved;
}

std::vector<SavedTensor> latent_retained(const Model& model, const Share& share) {
  const LatentAttention& latent = model.latent;
  const std::int64_t e = share.linear_element;
  const std::int64_t own = share.shard_tokens * e;
  const std::int64_t all = share.tokens * e;
  std::vector<SavedTensor> retained;
  retained.push_back({"q_down.input", Bytes(own * share.hidden)});
  if (latent.query_rank > 0) {
    retained.push_back({"q_down.gradient", Bytes(own * latent.query_rank)});
    retained.push_back({"q_up.input", Bytes(own * latent.query_rank)});
  }
  retained.push_back({"q_up.gradient", Bytes(all * share.query_width)});
  retained.push_back({"kv_down.gradient", Bytes(own * (latent.kv_rank + latent.rope_head_size))});
  retained.push_back({"kv_up.input", Bytes(own * latent.kv_rank)});
  const std::int64_t up = latent_up_width(model) / (model.heads / share.heads);
  retained.push_back({"kv_up.gradient", Bytes(all * up)});
  return retained;
}

}  // namespace foresail::models
