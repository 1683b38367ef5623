#include "op_context.h"

#include <fmt/format.h>

#include "foresail/base/error.h"

namespace foresail::runtime {

OpContext::Timed::Timed(KernelClock* clock, std::size_t kernel)
    : clock_(clock), kernel_(kernel), start_ns_(clock != nullptr ? clock->now_ns() : 0) {}

OpContext::Timed::~Timed() {
  if (clock_ != nullptr) clock_->record(kernel_, start_ns_, clock_->now_ns());
}

std::size_t OpContext::begin(std::string_view name) {
  const std::vector<Kernel>& kernels = options_.list->kernels;
  const std::string full =
      phase_ == Phase::First ? std::string(name) : fmt::format("{}.recompute", name);
  const std::string expected = next_ < kernels.size() ? kernels[next_].name : "the end";
  if (expected != full) {
    throw ContractViolation(fmt::format("{}: kernel {}: the stage runs {}, the program says {}",
                                        options_.list->name, next_, full, expected));
  }
  return next_++;
}

std::size_t OpContext::begin_collective(std::string_view name, Collective kind,
                                        const at::Tensor& whole) {
  FORESAIL_EXPECT(options_.tp != nullptr);
  const std::size_t index = begin(name);
  const Kernel& kernel = options_.list->kernels[index];
  const auto bytes = static_cast<std::int64_t>(whole.nbytes());
  if (kernel.kind != KernelKind::Collective || kernel.collective != kind ||
      kernel.lane != Lane::Tp || kernel.bytes.count() != bytes) {
    throw ContractViolation(
        fmt::format("{}: {}: the stage runs {} of {} bytes, the program says {} of {} bytes",
                    options_.list->name, name, to_string(kind), bytes, to_string(kernel.collective),
                    kernel.bytes.count()));
  }
  return index;
}

Pending OpContext::run(std::size_t kernel, std::function<void()> work) {
  if (options_.tp_lane == nullptr) {
    const Timed timed(options_.clock, kernel);
    work();
    return Pending();
  }
  return Pending(options_.tp_lane->submit([clock = options_.clock, kernel, work = std::move(work)] {
    const Timed timed(clock, kernel);
    work();
  }));
}

Pending OpContext::start_all_reduce(std::string_view name, at::Tensor tensor, Reduction reduction) {
  const std::size_t kernel = begin_collective(name, Collective::AllReduce, tensor);
  return run(kernel, [tp = options_.tp, tensor, reduction]() mutable {
    tp->all_reduce(tensor, reduction);
  });
}

Pending OpContext::start_all_gather(std::string_view name, at::Tensor input, at::Tensor output) {
  const std::size_t kernel = begin_collective(name, Collective::AllGather, output);
  return run(kernel,
             [tp = options_.tp, input, output]() mutable { tp->all_gather(input, output); });
}

Pending OpContext::start_reduce_scatter(std::string_view name, at::Tensor input,
                                        at::Tensor output) {
  const std::size_t kernel = begin_collective(name, Collective::ReduceScatter, input);
  return run(kernel,
             [tp = options_.tp, input, output]() mutable { tp->reduce_scatter(input, output); });
}

at::Tensor OpContext::all_gather(std::string_view name, const at::Tensor& input) {
  std::vector<std::int64_t> shape = input.sizes().vec();
  shape[0] *= tp_size();
  at::Tensor output = at::empty(shape, input.options());
  start_all_gather(name, input.contiguous(), output).wait();
  return output;
}

at::Tensor OpContext::reduce_scatter(std::string_view name, const at::Tensor& input) {
  std::vector<std::int64_t> shape = input.sizes().vec();
  FORESAIL_EXPECT(shape[0] % tp_size() == 0);
  shape[0] /= tp_size();
  at::Tensor output = at::empty(shape, input.options());
  start_reduce_scatter(name, input.contiguous(), output).wait();
  return output;
}

void OpContext::finish() const {
  if (next_ == options_.list->kernels.size()) return;
  throw ContractViolation(fmt::format("{}: the stage ended before kernel {} ({})",
                                      options_.list->name, next_,
                                      options_.list->kernels[next_].name));
}

}  // namespace foresail::runtime
