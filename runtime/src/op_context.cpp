#include "op_context.h"

#include <fmt/format.h>

#include "foresail/base/error.h"

namespace foresail::runtime {

using program::communicator_of;

namespace {

/// What stands before the first point of a collective's name.
std::string_view group_of(std::string_view name) {
  return name.substr(0, name.find('.'));
}

}  // namespace

OpContext::Timed::Timed(KernelClock* clock, std::size_t kernel)
    : clock_(clock), kernel_(kernel), start_(clock != nullptr ? clock->now() : Mark{}) {}

OpContext::Timed::~Timed() {
  if (clock_ != nullptr) clock_->record(kernel_, start_, clock_->now());
}

std::string OpContext::full_name(std::string_view name) const {
  return phase_ == Phase::First ? std::string(name) : fmt::format("{}.recompute", name);
}

OpContext::Batches OpContext::next_batches(const std::string& linear,
                                           const std::string& suffix) const {
  const std::vector<Kernel>& kernels = options_.list->kernels;
  Batches batches;
  const auto add_if_next = [&](std::string name) {
    const std::size_t at = next_ + batches.names.size();
    if (at >= kernels.size() || kernels[at].name != full_name(name)) return false;
    batches.names.push_back(std::move(name));
    batches.experts.push_back(kernels[at].batch);
    return true;
  };
  if (add_if_next(linear + suffix)) return batches;
  for (int i = 0; add_if_next(fmt::format("{}.{}{}", linear, i, suffix)); ++i) {
  }
  return batches;
}

std::size_t OpContext::begin(std::string_view name) {
  const std::vector<Kernel>& kernels = options_.list->kernels;
  const std::string full = full_name(name);
  const std::string expected = next_ < kernels.size() ? kernels[next_].name : "the end";
  if (expected != full) {
    throw ContractViolation(fmt::format("{}: kernel {}: the stage runs {}, the program says {}",
                                        options_.list->name, next_, full, expected));
  }
  return next_++;
}

const KernelGroup* OpContext::find(std::string_view communicator) const {
  if (options_.groups == nullptr) return nullptr;
  const auto found = options_.groups->find(communicator);
  return found == options_.groups->end() ? nullptr : &found->second;
}

int OpContext::group_size(std::string_view communicator) const {
  const KernelGroup* group = find(communicator);
  return group == nullptr ? 1 : group->communicator->size();
}

int OpContext::group_rank(std::string_view communicator) const {
  const KernelGroup* group = find(communicator);
  return group == nullptr ? 0 : group->communicator->rank();
}

std::size_t OpContext::begin_collective(std::string_view name, Collective kind,
                                        std::optional<std::int64_t> bytes) {
  const std::size_t index = begin(name);
  const Kernel& kernel = options_.list->kernels[index];
  if (kernel.kind != KernelKind::Collective || kernel.collective != kind ||
      communicator_of(kernel) != group_of(name) ||
      kernel.bytes.count() != bytes.value_or(kernel.bytes.count())) {
    throw ContractViolation(
        fmt::format("{}: {}: the stage runs {} of {} bytes, the program says {} of {} bytes",
                    options_.list->name, name, to_string(kind), bytes.value_or(0),
                    to_string(kernel.collective), kernel.bytes.count()));
  }
  return index;
}

Pending OpContext::run(std::size_t kernel, std::function<void(Communicator&)> work) {
  const KernelGroup* group = find(communicator_of(options_.list->kernels[kernel]));
  FORESAIL_EXPECT(group != nullptr);
  Communicator& communicator = *group->communicator;
  if (group->lane == nullptr) {
    const Timed timed(options_.clock, kernel);
    work(communicator);
    return Pending();
  }
  FORESAIL_EXPECT(options_.device != nullptr);
  Device& device = *options_.device;
  const auto end = std::make_shared<Mark>();
  auto done = group->lane->submit([&device, &communicator, kernel, end, clock = options_.clock,
                                   work = std::move(work), start = device.mark()] {
    device.follow(start);
    {
      const Timed timed(clock, kernel);
      work(communicator);
    }
    *end = device.mark();
  });
  return {std::move(done), end, device};
}

Pending OpContext::start(std::string_view name, Collective kind, std::optional<std::int64_t> bytes,
                         std::function<void(Communicator&)> work) {
  return run(begin_collective(name, kind, bytes), std::move(work));
}

Pending OpContext::start_all_reduce(std::string_view name, at::Tensor tensor, Reduction reduction) {
  const std::size_t kernel = begin_collective(name, Collective::AllReduce, tensor);
  return run(kernel, [tensor, reduction](Communicator& group) mutable {
    group.all_reduce(tensor, reduction);
  });
}

Pending OpContext::start_all_gather(std::string_view name, at::Tensor input, at::Tensor output) {
  const std::size_t kernel = begin_collective(name, Collective::AllGather, output);
  return run(kernel,
             [input, output](Communicator& group) mutable { group.all_gather(input, output); });
}

Pending OpContext::start_reduce_scatter(std::string_view name, at::Tensor input,
                                        at::Tensor output) {
  const std::size_t kernel = begin_collective(name, Collective::ReduceScatter, input);
  return run(kernel,
             [input, output](Communicator& group) mutable { group.reduce_scatter(input, output); });
}

Pending OpContext::start_exchange(std::string_view name, std::function<at::Tensor()> output,
                                  at::Tensor input) {
  const std::size_t kernel = begin_collective(name, Collective::SendRecv, input);
  return run(kernel, [output = std::move(output), input](Communicator& group) mutable {
    const int size = group.size();
    group.exchange(output(), (group.rank() + 1) % size, input, (group.rank() + size - 1) % size);
  });
}

at::Tensor OpContext::all_gather(std::string_view name, const at::Tensor& input) {
  std::vector<std::int64_t> shape = input.sizes().vec();
  shape[0] *= group_size(group_of(name));
  at::Tensor output = at::empty(shape, input.options());
  start_all_gather(name, input.contiguous(), output).wait();
  return output;
}

at::Tensor OpContext::reduce_scatter(std::string_view name, const at::Tensor& input) {
  std::vector<std::int64_t> shape = input.sizes().vec();
  const int size = group_size(group_of(name));
  FORESAIL_EXPECT(shape[0] % size == 0);
  shape[0] /= size;
  at::Tensor output = at::empty(shape, input.options());
  start_reduce_scatter(name, input.contiguous(), output).wait();
  return output;
}

at::Tensor OpContext::all_to_all(std::string_view name, const at::Tensor& input) {
  const std::size_t kernel = begin_collective(name, Collective::AllToAll, input);
  at::Tensor output = at::empty_like(input);
  run(kernel, [input = input.contiguous(), output](Communicator& group) mutable {
    group.all_to_all(input, output);
  }).wait();
  return output;
}

void OpContext::finish() const {
  if (next_ == options_.list->kernels.size()) return;
  throw ContractViolation(fmt::format("{}: the stage ended before kernel {} ({})",
                                      options_.list->name, next_,
                                      options_.list->kernels[next_].name));
}

}  // namespace foresail::runtime
