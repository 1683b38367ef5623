#include "expert_gemms.h"

#include <numeric>

namespace foresail::runtime {
namespace {

/// Calls `work(expert)` for the experts of each of the Program's kernels, in one kernel each.
template <class Work>
void for_experts(OpContext& op, const std::string& linear, const std::string& suffix,
                 std::int64_t experts, const Work& work) {
  const OpContext::Batches batches = op.next_batches(linear, suffix);
  FORESAIL_EXPECT(!batches.names.empty());
  std::int64_t next = 0;
  for (std::size_t i = 0; i < batches.names.size(); ++i) {
    const bool is_last = i + 1 == batches.names.size();
    const std::int64_t end = is_last ? experts : std::min(experts, next + batches.experts[i]);
    op.compute(batches.names[i], [&] {
      for (; next < end; ++next) work(next);
    });
  }
}

at::Tensor by_expert(const at::Tensor& rows, const ExpertRows& layout) {
  const auto experts = static_cast<std::int64_t>(layout.counts.size());
  return rows.view({experts, layout.counts.front(), rows.size(1)});
}

/// The one kernel of a batch over all experts.
std::string batch_name(OpContext& op, const std::string& linear, const std::string& suffix) {
  const OpContext::Batches batches = op.next_batches(linear, suffix);
  FORESAIL_EXPECT(batches.names.size() == 1);
  return batches.names.front();
}

}  // namespace

std::int64_t ExpertRows::first(std::int64_t expert) const {
  return std::accumulate(counts.begin(), counts.begin() + expert, std::int64_t{0});
}

at::Tensor expert_forward(OpContext& op, const std::string& linear, const ExpertRows& rows,
                          const at::Tensor& input, const Parameter& weight, const Parameter* bias) {
  const auto experts = static_cast<std::int64_t>(rows.counts.size());
  if (rows.is_batched) {
    return op.compute(batch_name(op, linear, ""), [&] {
      at::Tensor output = batched_product(by_expert(input, rows), weight.value.transpose(1, 2));
      if (bias != nullptr) output.add_(bias->value.unsqueeze(1));
      return output.view({input.size(0), -1});
    });
  }
  const at::Tensor output = at::empty({input.size(0), weight.value.size(1)}, input.options());
  for_experts(op, linear, "", experts, [&](std::int64_t expert) {
    const std::int64_t count = rows.counts[static_cast<std::size_t>(expert)];
    if (count == 0) return;
    at::Tensor part = output.narrow(0, rows.first(expert), count);
    const at::Tensor own = input.narrow(0, rows.first(expert), count);
    set_product(part, own, weight.value.select(0, expert).t());
    if (bias != nullptr) part.add_(bias->value.select(0, expert));
  });
  return output;
}

at::Tensor expert_input_gradient(OpContext& op, const std::string& linear, const ExpertRows& rows,
                                 const at::Tensor& grad, const Parameter& weight) {
  const auto experts = static_cast<std::int64_t>(rows.counts.size());
  if (rows.is_batched) {
    return op.compute(batch_name(op, linear, ".dgrad"), [&] {
      return batched_product(by_expert(grad, rows), weight.value).view({grad.size(0), -1});
    });
  }
  const at::Tensor result = at::empty({grad.size(0), weight.value.size(2)}, grad.options());
  for_experts(op, linear, ".dgrad", experts, [&](std::int64_t expert) {
    const std::int64_t count = rows.counts[static_cast<std::size_t>(expert)];
    if (count == 0) return;
    at::Tensor part = result.narrow(0, rows.first(expert), count);
    set_product(part, grad.narrow(0, rows.first(expert), count), weight.value.select(0, expert));
  });
  return result;
}

void expert_weight_gradient(OpContext& op, const std::string& linear, const ExpertRows& rows,
                            const at::Tensor& grad, const at::Tensor& input,
                            const Parameter& weight, const Parameter* bias) {
  const auto experts = static_cast<std::int64_t>(rows.counts.size());
  if (rows.is_batched) {
    op.compute(batch_name(op, linear, ".wgrad"), [&] {
      const at::Tensor grads = widened(by_expert(grad, rows));
      const at::Tensor inputs = widened(by_expert(input, rows));
      at::Tensor(weight.grad).add_(at::bmm(grads.transpose(1, 2), inputs));
      if (bias != nullptr) at::Tensor(bias->grad).add_(grads.sum(1));
    });
    return;
  }
  for_experts(op, linear, ".wgrad", experts, [&](std::int64_t expert) {
    const std::int64_t count = rows.counts[static_cast<std::size_t>(expert)];
    if (count == 0) return;
    const at::Tensor own = grad.narrow(0, rows.first(expert), count);
    add_product(weight.grad.select(0, expert), own.t(), input.narrow(0, rows.first(expert), count));
    if (bias != nullptr) bias->grad.select(0, expert).add_(widened(own).sum(0));
  });
}

void add_expert_bias(const ExpertRows& rows, at::Tensor& values, const Parameter& bias) {
  for (std::size_t expert = 0; expert < rows.counts.size(); ++expert) {
    const auto index = static_cast<std::int64_t>(expert);
    values.narrow(0, rows.first(index), rows.counts[expert]).add_(bias.value.select(0, index));
  }
}

void take_expert_bias_gradient(const ExpertRows& rows, const at::Tensor& grad,
                               const Parameter& bias) {
  for (std::size_t expert = 0; expert < rows.counts.size(); ++expert) {
    const auto index = static_cast<std::int64_t>(expert);
    const at::Tensor own = grad.narrow(0, rows.first(index), rows.counts[expert]);
    bias.grad.select(0, index).add_(widened(own).sum(0));
  }
}

}  // namespace foresail::runtime
