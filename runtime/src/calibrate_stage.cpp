#include <time.h>

#include <algorithm>

#include "calibration.h"
#include "executor.h"
#include "passes.h"
#include "state_sync.h"

namespace foresail::runtime {
namespace {

constexpr int kRepeatsMin = 4;
constexpr int kRepeatsMax = 400;

/// A group whose other members are absent: sizes as in the real one, but nothing is exchanged.
class IdleCommunicator : public Communicator {
 public:
  IdleCommunicator(int rank, int size) : Communicator("idle", rank, size) {}
  void all_reduce(Tensor&, Reduction) override {}
  void all_gather(const Tensor& input, Tensor& output) override {
    for (at::Tensor part : output.chunk(size(), 0)) part.copy_(input.view_as(part));
  }
  void reduce_scatter(const Tensor& input, Tensor& output) override {
    output.copy_(input.chunk(size(), 0).front().view_as(output));
  }
  void broadcast(Tensor&, int) override {}
  void all_to_all(const Tensor& input, Tensor& output) override { output.copy_(input); }
  void all_to_all_rows(const Tensor&, const std::vector<std::int64_t>&, Tensor& output,
                       const std::vector<std::int64_t>&) override {
    output.zero_();
  }
  void send(const Tensor&, int) override {}
  void recv(Tensor& tensor, int) override { tensor.zero_(); }
  void exchange(const Tensor& output, int, Tensor& input, int) override { input.copy_(output); }
  void barrier() override {}
  std::unique_ptr<Communicator> split(int, int) override {
    return std::make_unique<IdleCommunicator>(rank(), size());
  }
  void abort() override {}
};

/// Samples of every kernel of one list.
class SampleClock : public KernelClock {
 public:
  SampleClock(const CostClock& clock, std::size_t kernels) : clock_(clock), samples_(kernels) {}
  Mark now() override { return clock_.now(); }
  void record(std::size_t kernel, const Mark& start, const Mark& end) override {
    open_.push_back({kernel, start, end});
  }
  /// Time inside kernels since the last call. Waits until a device has done them.
  std::int64_t take_inside_ns() {
    std::int64_t inside_ns = 0;
    for (const Open& each : open_) {
      const std::int64_t ns = clock_.between_ns(each.start, each.end);
      samples_[each.kernel].push_back(static_cast<double>(ns) * 1e-9);
      inside_ns += ns;
    }
    open_.clear();
    return inside_ns;
  }
  const std::vector<std::vector<double>>& samples() const { return samples_; }

 private:
  struct Open {
    std::size_t kernel = 0;
    Mark start, end;
  };
  CostClock clock_;
  std::vector<Open> open_;
  std::vector<std::vector<double>> samples_;
};

/// Runs the passes of one stage with stand-ins for what its neighbours would send.
class StageBench {
 public:
  /// `on`: null for the CPU.
  StageBench(const Job& job, RankId rank, Device* on)
      : cpu_(on == nullptr ? make_cpu_device() : nullptr),
        device_(on != nullptr ? *on : *cpu_),
        clock_(on),
        job_(job),
        rank_(rank),
        place_(MeshPlace::of(job.program, rank)),
        tp_(place_.tp, place_.tp_size),
        cp_(place_.cp, place_.cp_size),
        shards_(place_.shard, place_.shards),
        ep_(place_.experts.ep, place_.experts.ep_size),
        etp_(place_.experts.etp, place_.experts.etp_size),
        etp_ep_(place_.experts.place_of_self(), place_.experts.ep_size * place_.experts.etp_size),
        expert_shards_(place_.experts.shard, place_.experts.shards),
        stage_(job, rank, device_.place()),
        passes_(job, stage_, place_, {.device = &device_}),
        state_(job, stage_, place_, device_) {
    if (tp_.size() > 1) groups_["tp"] = {&tp_, nullptr};
    if (cp_.size() > 1) groups_["cp"] = {&cp_, nullptr};
    if (ep_.size() > 1) groups_["ep"] = {&ep_, nullptr};
    if (etp_.size() > 1) groups_["etp"] = {&etp_, nullptr};
    if (ep_.size() > 1 && etp_.size() > 1) groups_["etp_ep"] = {&etp_ep_, nullptr};
    const std::int64_t tokens =
        job.split.sequence_length / job.split.cp * job.split.microbatch_size;
    const auto text = [&](std::int64_t first) {
      return at::arange(first, first + tokens, at::kLong).remainder_(256).to(device_.place());
    };
    passes_.use_batch({text(0)}, {text(1)});
    for (const program::Op& op : job.program.of(rank).ops) {
      if (op.kind == program::OpKind::Compute && op.pass == program::Pass::Optimizer) {
        optimizer_.push_back(op.kernels);
      } else if (op.kind == program::OpKind::Compute) {
        list_of_[{op.pass, op.chunk}] = op.kernels;
      }
      if (op.kind == program::OpKind::Collective && op.microbatch >= 0) {
        per_pass_[{op.payload, op.chunk}] = op;
      }
    }
  }

  void run_once() {
    const int chunks = job_.program.chunks;
    for (int chunk = 0; chunk < chunks; ++chunk) forward({chunk, 0});
    for (int chunk = chunks - 1; chunk >= 0; --chunk) backward({chunk, 0});
    // Weights that learned one batch by heart would have gradients too small for normal numbers.
    const StateSync::OptimizerStep step{.gradient_norm = 1, .learning_rate = 0};
    for (const program::KernelListId id : optimizer_) {
      timed(id, [&](OpContext& context) {
        for (const Kernel& kernel : job_.program.kernel_lists[id.value].kernels) {
          context.compute(kernel.name, [&] { state_.optimize(kernel.name, step); });
        }
      });
    }
  }

  /// Drops what has been measured so far: the first passes find cold caches.
  void forget() {
    clocks_.clear();
    overheads_.clear();
  }

  StageTimes times() {
    StageTimes times;
    for (const auto& [list, clock] : clocks_) {
      ListTimes& kernels = times.lists[list];
      for (const std::vector<double>& samples : clock.samples()) {
        kernels.push_back(median(samples));
      }
      const auto& described = job_.program.kernel_lists[list].kernels;
      for (std::size_t i = 0; i < kernels.size(); ++i) {
        if (described[i].kind == KernelKind::Collective) kernels[i] = 0;
      }
    }
    times.op_overhead = median(overheads_);
    times.step_overhead = empty_step();
    return times;
  }

 private:
  void forward(PassKey key) {
    const Chunk& chunk = stage_.chunk(key.chunk);
    if (place_.pp_size > 1 && !chunk.part().has_embedding()) {
      const auto payload = program::Payload::Activation;
      passes_.deliver(payload, key, passes_.message_buffer(payload).normal_());
    }
    exchange(program::Payload::ChunkParameters, key.chunk);
    exchange(program::Payload::ExpertParameters, key.chunk);
    state_.before_pass(pass_op(program::Pass::Forward, key));
    timed(program::Pass::Forward, key.chunk,
          [&](OpContext& context) { passes_.forward(key, context); });
    state_.after_pass(pass_op(program::Pass::Forward, key));
    if (place_.pp_size == 1) return;
    if (!chunk.part().has_head()) passes_.outgoing(program::Payload::Activation, key);
  }

  void backward(PassKey key) {
    const Chunk& chunk = stage_.chunk(key.chunk);
    if (place_.pp_size > 1 && !chunk.part().has_head()) {
      const auto payload = program::Payload::Gradient;
      passes_.deliver(payload, key, passes_.message_buffer(payload).normal_().mul_(1e-3));
    }
    exchange(program::Payload::ChunkParameters, key.chunk);
    exchange(program::Payload::ExpertParameters, key.chunk);
    state_.before_pass(pass_op(program::Pass::Backward, key));
    timed(program::Pass::Backward, key.chunk,
          [&](OpContext& context) { passes_.backward(key, context); });
    state_.after_pass(pass_op(program::Pass::Backward, key));
    exchange(program::Payload::ChunkGradients, key.chunk);
    exchange(program::Payload::ExpertGradients, key.chunk);
    if (place_.pp_size == 1) return;
    if (!chunk.part().has_embedding()) passes_.outgoing(program::Payload::Gradient, key);
  }

  static program::Op pass_op(program::Pass pass, PassKey key) {
    program::Op op;
    op.pass = pass;
    op.chunk = key.chunk;
    op.microbatch = key.microbatch;
    return op;
  }

  /// What moves the chunk's states around every pass, if anything does.
  void exchange(program::Payload payload, int chunk) {
    const auto found = per_pass_.find({payload, chunk});
    if (found == per_pass_.end()) return;
    program::Op op = found->second;
    op.microbatch = 0;
    const bool is_of_experts = payload == program::Payload::ExpertParameters ||
                               payload == program::Payload::ExpertGradients;
    state_.run(op, is_of_experts ? expert_shards_ : shards_);
  }

  template <class Work>
  void timed(program::Pass pass, int chunk, const Work& work) {
    overheads_.push_back(static_cast<double>(timed(list_of_.at({pass, chunk}), work)) * 1e-9);
  }

  /// Answers with the time outside of kernels.
  template <class Work>
  std::int64_t timed(program::KernelListId id, const Work& work) {
    const program::KernelList& list = job_.program.kernel_lists[id.value];
    SampleClock& clock = clocks_.try_emplace(id.value, clock_, list.kernels.size()).first->second;
    clock_.begin();
    const Mark start = clock_.now();
    OpContext context({.list = &list, .groups = &groups_, .device = &device_, .clock = &clock});
    work(context);
    context.finish();
    const Mark end = clock_.now();
    return clock_.between_ns(start, end) - clock.take_inside_ns();
  }

  /// Wall time of a step whose ops do nothing, plus the gradient norm.
  double empty_step() {
    SpanLog log(Recording::Off);
    Executor executor(job_.program, rank_, log, device_);
    std::vector<double> samples;
    for (int i = 0; i < 9; ++i) {
      const std::int64_t start = steady_ns();
      executor.run_step(i, {.run = [](program::OpId) {}, .failed = [](std::exception_ptr) {}});
      state_.local_scalars(0);
      samples.push_back(static_cast<double>(steady_ns() - start) * 1e-9);
    }
    return median(samples);
  }

  std::unique_ptr<Device> cpu_;  // null on a device
  Device& device_;
  CostClock clock_;
  const Job& job_;
  RankId rank_;
  MeshPlace place_;
  IdleCommunicator tp_, cp_, shards_, ep_, etp_, etp_ep_, expert_shards_;
  KernelGroups groups_;
  Stage stage_;
  Passes passes_;
  StateSync state_;
  std::map<std::pair<program::Pass, int>, program::KernelListId> list_of_;  // but optimizer_
  std::vector<program::KernelListId> optimizer_;
  std::map<std::pair<program::Payload, int>, program::Op> per_pass_;
  std::map<std::uint32_t, SampleClock> clocks_;
  std::vector<double> overheads_;
};

}  // namespace

std::int64_t thread_cpu_ns() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return std::int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

Mark CostClock::now() const {
  return device_ != nullptr ? device_->mark() : Mark{.ns = thread_cpu_ns(), .event = nullptr};
}

std::int64_t CostClock::between_ns(const Mark& start, const Mark& end) const {
  if (device_ == nullptr) return end.ns - start.ns;
  return device_->passed_ns(end) - device_->passed_ns(start);
}

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::ranges::nth_element(values, middle);
  return *middle;
}

StageTimes measure_stage(const CalibrateOptions& options) {
  use_one_core();
  const RankId rank{static_cast<std::uint32_t>(options.rank)};
  StageBench bench(*options.job, rank, options.device);
  bench.run_once();
  bench.forget();
  const std::int64_t budget_ns =
      std::chrono::duration_cast<std::chrono::nanoseconds>(options.budget).count();
  const std::int64_t end = steady_ns() + budget_ns;
  for (int i = 0; i < kRepeatsMax && (i < kRepeatsMin || steady_ns() < end); ++i) {
    bench.run_once();
  }
  return bench.times();
}

}  // namespace foresail::runtime
