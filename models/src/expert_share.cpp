#include <algorithm>
#include <cmath>

#include "foresail/base/error.h"
#include "shape.h"
#include "share.h"

namespace foresail::models {
namespace {

// Shares are sums of doubles: a whole number may come out a little above itself.
std::int64_t tokens_of(double share, std::int64_t all) {
  const double tokens = share * static_cast<double>(all);
  return static_cast<std::int64_t>(std::ceil(tokens - 1e-9 * static_cast<double>(all)));
}

/// The experts of one rank.
struct Block {
  std::size_t first = 0;
  std::size_t count = 1;
  double share = 0;
};

// The ep rank that gets most tokens; of equals the first.
Block hottest_block(const std::vector<double>& load, std::size_t local) {
  Block hottest;
  for (std::size_t first = 0; first < load.size(); first += local) {
    double share = 0;
    for (std::size_t e = first; e < first + local; ++e) share += load[e];
    if (first == 0 || share > hottest.share) hottest = {first, local, share};
  }
  return hottest;
}

void add(std::vector<ExpertShare::Batch>& batches, std::int64_t experts, std::int64_t tokens) {
  if (tokens == 0) return;
  const auto same = std::ranges::find(batches, tokens, &ExpertShare::Batch::tokens);
  if (same != batches.end()) {
    same->experts += experts;
  } else {
    batches.push_back({experts, tokens});
  }
}

// Every rank sends `capacity` tokens to every expert, whatever the router wants.
void fill_by_capacity(const Experts& experts, ExpertShare& share) {
  const double mean = static_cast<double>(share.tokens * experts.per_token) / experts.count;
  const auto capacity = static_cast<std::int64_t>(
      std::max(1.0, std::ceil(experts.capacity_factor * mean - 1e-9 * mean)));
  share.is_dropless = false;
  share.copies = capacity * experts.count;
  share.received = share.copies;
  add(share.batches, share.local, capacity * share.ep * share.expert_tp);
}

void fill_by_load(const std::vector<double>& load, ExpertShare& share) {
  const std::int64_t routed = share.copies * share.ep;  // by the ranks of one exchange
  if (load.empty()) {
    share.received = share.copies;
    const std::int64_t all = routed * share.expert_tp;
    add(share.batches, share.local, (all + share.experts - 1) / share.experts);
    return;
  }
  FORESAIL_EXPECT(load.size() == static_cast<std::size_t>(share.experts));
  const Block block = hottest_block(load, static_cast<std::size_t>(share.local));
  share.received = tokens_of(block.share, routed);
  for (std::size_t e = block.first; e < block.first + block.count; ++e) {
    add(share.batches, 1, tokens_of(load[e], routed * share.expert_tp));
  }
}

}  // namespace

ExpertShare expert_share_of(const Model& model, const Split& split,
                            const std::vector<double>& load) {
  const Experts& experts = model.experts;
  FORESAIL_EXPECT(experts.count > 0);
  FORESAIL_EXPECT(experts.count % split.ep == 0);
  FORESAIL_EXPECT(experts.ffn % split.expert_tp == 0);
  FORESAIL_EXPECT(shared_ffn(model) % split.tp == 0);
  ExpertShare share;
  share.experts = experts.count;
  share.local = experts.count / split.ep;
  share.tokens = share_of(model, split).shard_tokens;
  share.copies = share.tokens * experts.per_token;
  share.ep = split.ep;
  share.expert_tp = split.expert_tp;
  if (experts.capacity_factor > 0) {
    fill_by_capacity(experts, share);
  } else {
    fill_by_load(load, share);
  }
  share.gathered = share.received * share.expert_tp;
  share.exchanged = std::max(share.copies, share.received);
  share.fc1_width = fc1_width(model, experts.ffn) / split.expert_tp;
  share.ffn = experts.ffn / split.expert_tp;
  share.shared_fc1_width = fc1_width(model, shared_ffn(model)) / split.tp;
  share.shared_ffn = shared_ffn(model) / split.tp;
  share.has_shared_gate = experts.shared_gate;
  share.is_overlapped = split.overlap_ep;
  return share;
}

}  // namespace foresail::models
