#include "expert_routing.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <tuple>

#include "foresail/base/error.h"

namespace foresail::runtime {
namespace {

/// The planner's rule (models, ExpertShare).
std::int64_t capacity_of(const models::Experts& experts, std::int64_t tokens) {
  const double mean = static_cast<double>(tokens * experts.per_token) / experts.count;
  return static_cast<std::int64_t>(
      std::max(1.0, std::ceil(experts.capacity_factor * mean - 1e-9 * mean)));
}

/// Rows `index` of `from`, zeros where it is negative.
at::Tensor pick(const at::Tensor& from, const at::Tensor& index, bool has_gaps) {
  if (!has_gaps) return from.index_select(0, index);
  return from.index_select(0, index.clamp_min(0)).mul_(index.ge(0).to(at::kFloat).unsqueeze(1));
}

void fill_dropless(Routing& routing, const at::Tensor& order) {
  routing.copy = order;
  routing.row = at::empty_like(order);
  routing.row.index_copy_(0, order, at::arange(order.numel(), order.options()));
}

/// No size follows from the data, so that the host need not know it.
void fill_capacity(Routing& routing, const at::Tensor& order, std::int64_t capacity) {
  const at::Tensor& counts = routing.counts;
  const std::int64_t rows = counts.numel() * capacity;
  const at::Tensor expert = routing.experts.reshape({-1}).index_select(0, order);
  const at::Tensor first = counts.cumsum(0) - counts;
  const at::Tensor place =
      at::arange(order.numel(), order.options()) - first.index_select(0, expert);
  const at::Tensor is_kept = place.lt(capacity);
  const at::Tensor row = expert * capacity + place;
  routing.row = at::empty_like(order);
  routing.row.index_copy_(0, order, row.masked_fill(is_kept.logical_not(), -1));
  // Copies that are dropped all go to one place behind the rows.
  at::Tensor places = at::full({rows + 1}, -1, order.options());
  places.index_copy_(0, row.masked_fill(is_kept.logical_not(), rows), order);
  routing.copy = places.narrow(0, 0, rows);
  routing.is_kept = routing.row.ge(0).to(at::kFloat).view_as(routing.weights);
  routing.weights = routing.weights * routing.is_kept;
  routing.capacity = capacity;
  routing.counts = at::full_like(counts, capacity);
}

}  // namespace

at::Tensor Routing::tokens_to_rows(const at::Tensor& tokens) const {
  return pick(tokens, at::div(copy, experts.size(1), "floor"), is_kept.defined());
}

at::Tensor Routing::copies_to_rows(const at::Tensor& copies) const {
  return pick(copies, copy, is_kept.defined());
}

at::Tensor Routing::rows_to_copies(const at::Tensor& rows) const {
  return pick(rows, row, is_kept.defined()).view({experts.size(0), experts.size(1), rows.size(1)});
}

Routing route(const models::Experts& experts, const at::Tensor& logits) {
  Routing routing;
  routing.probabilities = at::softmax(logits, -1, at::kFloat);
  std::tie(routing.weights, routing.experts) = routing.probabilities.topk(experts.per_token, -1);
  const at::Tensor chosen = routing.experts.reshape({-1});
  const at::Tensor order = std::get<1>(chosen.sort(/*stable=*/true, 0, /*descending=*/false));
  routing.counts = at::zeros({experts.count}, chosen.options());
  routing.counts.scatter_add_(0, chosen, at::ones_like(chosen));
  if (experts.capacity_factor > 0) {
    fill_capacity(routing, order, capacity_of(experts, logits.size(0)));
  } else {
    fill_dropless(routing, order);
  }
  return routing;
}

at::Tensor count_by_sample(const Routing& routing, std::int64_t samples) {
  const std::int64_t experts = routing.probabilities.size(1);
  at::Tensor chosen = at::zeros_like(routing.probabilities);
  chosen.scatter_(1, routing.experts, 1.0);
  return chosen.view({-1, samples, experts}).sum(0);
}

at::Tensor balance_gradient(const BalanceOptions& options, const at::Tensor& counts,
                            std::int64_t tokens) {
  const models::Experts& experts = *options.experts;
  const auto length = static_cast<double>(options.sequence_length);
  const double scale =
      experts.balance_loss * experts.count /
      (experts.per_token * length * length * static_cast<double>(options.global_batch_size));
  return (counts * scale).repeat({tokens / counts.size(0), 1});
}

std::int64_t RowExchange::rows() const {
  return std::accumulate(rows_of_expert.begin(), rows_of_expert.end(), std::int64_t{0});
}

RowExchange plan_exchange(const ExpertPlace& place, const at::Tensor& counts) {
  const auto count = counts.accessor<std::int64_t, 2>();
  const std::int64_t local = counts.size(1) / place.ep_size;
  const std::int64_t first = place.ep * local;
  const auto block = [&](int ep, int etp, std::int64_t of) {
    std::int64_t sum = 0;
    for (std::int64_t e = of * local; e < (of + 1) * local; ++e) sum += count[place.of(ep, etp)][e];
    return sum;
  };
  RowExchange exchange;
  for (int other = 0; other < place.ep_size; ++other) {
    exchange.sends.push_back(block(place.ep, place.etp, other));
    exchange.receives.push_back(block(other, place.etp, place.ep));
    exchange.received += exchange.receives.back();
  }
  for (int etp = 0; etp < place.etp_size; ++etp) {
    std::int64_t received = 0;
    for (int ep = 0; ep < place.ep_size; ++ep) received += block(ep, etp, place.ep);
    exchange.padded = std::max(exchange.padded, received);
  }
  std::vector<std::int64_t> order;
  for (std::int64_t expert = first; expert < first + local; ++expert) {
    std::int64_t rows = 0;
    for (int etp = 0; etp < place.etp_size; ++etp) {
      std::int64_t start = etp * exchange.padded;
      for (int ep = 0; ep < place.ep_size; ++ep) {
        std::int64_t before = start;
        for (std::int64_t e = first; e < expert; ++e) before += count[place.of(ep, etp)][e];
        const std::int64_t own = count[place.of(ep, etp)][expert];
        for (std::int64_t i = 0; i < own; ++i) order.push_back(before + i);
        rows += own;
        start += block(ep, etp, place.ep);
      }
    }
    exchange.rows_of_expert.push_back(rows);
  }
  const bool has_sources = place.ep_size * place.etp_size > 1;
  if (has_sources && (local > 1 || place.etp_size > 1)) {
    exchange.order = at::tensor(at::ArrayRef<std::int64_t>(order), at::kLong);
  }
  return exchange;
}

}  // namespace foresail::runtime
