#include "latent_peak.h"

#include "shape.h"

namespace foresail::models {

LatentPeak::LatentPeak(LiveTensors& live, const Model& model, const Share& share)
    : live_(live),
      linear_(live, share),
      share_(share),
      query_rank_(model.latent.query_rank),
      kv_rank_(model.latent.kv_rank),
      rope_(model.latent.rope_head_size),
      up_(latent_up_width(model) / (model.heads / share.heads)) {}

std::int64_t LatentPeak::own(std::int64_t width) const {
  return share_.shard_tokens * width * share_.element;
}
std::int64_t LatentPeak::all(std::int64_t width) const {
  return share_.tokens * width * share_.element;
}
std::int64_t LatentPeak::gathered(std::int64_t width) const {
  return share_.is_sequence_parallel ? all(width) : 0;
}

void LatentPeak::forward() {
  const std::int64_t kept = share_.shard_tokens * share_.linear_element;
  live_.make("q_down.input", kept * share_.hidden);
  if (query_rank_ > 0) {
    live_.make("q_norm.input", own(query_rank_));
    live_.make("q_up.input", kept * query_rank_);
  }
  live_.make("kv_norm.input", own(kv_rank_));
  live_.make("shared_key", own(rope_));  // beside the latent, one for all heads
  live_.make("kv_up.input", kept * kv_rank_);
  live_.make("q_up.gathered_input", gathered(query_rank_ > 0 ? query_rank_ : share_.hidden));
  live_.make("q_up.output", all(share_.query_width));
  live_.drop({"q_up.gathered_input"});
  live_.make("kv_up.gathered_input", gathered(kv_rank_ + rope_));
  live_.make("kv_up.output", all(up_));
  live_.make("query", all(share_.query_width));
  live_.make("key", all(share_.key_width));
  live_.make("value", all(share_.value_width));
  live_.drop({"shared_key", "kv_up.gathered_input", "q_up.output", "kv_up.output"});
}

void LatentPeak::backward() {
  live_.make("q_up.output.gradient", all(share_.query_width));
  live_.make("kv_up.output.gradient", all(up_));
  live_.make("shared_key.gradient", all(rope_));
  live_.drop({"qkv.gradient"});
  linear_.column_backward("kv_up", {kv_rank_}, "kv_up.output.gradient");
  const std::int64_t query_in = query_rank_ > 0 ? query_rank_ : share_.hidden;
  linear_.column_backward("q_up", {query_in}, "q_up.output.gradient");
  live_.make("kv_norm.input.gradient", own(kv_rank_ + rope_));
  live_.drop({"kv_norm.input", "kv_up.input.gradient", "kv_up.whole_input.gradient",
              "shared_key.gradient"});
  live_.make("qkv.input.gradient", own(share_.hidden));
  live_.drop({"kv_norm.input.gradient"});
  if (query_rank_ > 0) {
    live_.make("q_norm.input.gradient", own(query_rank_));
    live_.drop({"q_norm.input", "q_up.input.gradient", "q_up.whole_input.gradient"});
    live_.make("q_down.input.gradient", own(share_.hidden));
  }
  // Two gradients of one input are added.
  live_.drop({"q_down.input", "q_norm.input.gradient", "q_down.input.gradient",
              "q_up.input.gradient", "q_up.whole_input.gradient"});
}

}  // namespace foresail::models
