#include "foresail/runtime/trainer.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "executor.h"
#include "foresail/base/error.h"
#include "foresail/runtime/tensor_memory.h"
#include "host_copy.h"
#include "passes.h"
#include "state_sync.h"
#include "storage.h"
#include "weight_map.h"

namespace foresail::runtime {
namespace {

using program::Op;
using program::OpId;
using program::OpKind;
using program::Pass;
using program::Payload;

/// Spans of the kernels of one Compute op.
class SpanClock : public KernelClock {
 public:
  struct Place {
    OpId op;
    int step = 0;
  };
  SpanClock(SpanLog& log, const program::KernelList& list, const Place& place, Device& device)
      : log_(log), list_(list), op_(place.op), step_(place.step), device_(device) {}
  Mark now() override { return device_.mark(); }
  void record(std::size_t kernel, const Mark& start, const Mark& end) override {
    const Kernel& done = list_.kernels[kernel];
    MeasuredSpan span;
    span.lane = static_cast<std::int32_t>(done.lane);
    span.kernel = static_cast<std::int32_t>(kernel);
    span.op = op_.value;
    span.step = step_;
    span.bytes = done.kind == KernelKind::Collective ? done.bytes.count() : 0;
    log_.add(span, start, end);
  }

 private:
  SpanLog& log_;
  const program::KernelList& list_;
  OpId op_;
  int step_;
  Device& device_;
};

/// A rank's end of a communicator that the Program declares, and who else is in it.
struct Group {
  std::unique_ptr<Communicator> communicator;  ///< null if this rank is not a member
  std::vector<RankId> members;
};

/// Null if this rank is not among `members`.
std::unique_ptr<Communicator> connect(const Trainer::Options& options, const std::string& kind,
                                      const std::vector<RankId>& members) {
  if (members.empty()) {
    options.endpoint->stand_by(kind, *options.store);
    return nullptr;
  }
  const auto self = std::ranges::find(members, options.rank);
  FORESAIL_EXPECT(self != members.end());
  const auto first = static_cast<int>(members.front().value);
  return options.endpoint->connect({.name = kind + "/" + std::to_string(first),
                                    .rank = static_cast<int>(self - members.begin()),
                                    .size = static_cast<int>(members.size()),
                                    .kind = kind,
                                    .color = first},
                                   *options.store);
}

std::vector<Group> connect_groups(const Trainer::Options& options) {
  const program::Program& program = options.job->program;
  std::vector<Group> groups;
  for (std::uint32_t i = 0; i < program.communicators.size(); ++i) {
    Group group;
    group.members = program.members(program::CommunicatorId{i}, options.rank);
    group.communicator = connect(options, program.communicators[i].name, group.members);
    groups.push_back(std::move(group));
  }
  if (options.connected) options.connected();
  return groups;
}

std::string message_of(const std::exception_ptr& failure) {
  try {
    std::rethrow_exception(failure);
  } catch (const std::exception& error) {
    return error.what();
  }
}

}  // namespace

struct Trainer::Impl {
  explicit Impl(const Options& from)
      : cpu(from.device == nullptr ? make_cpu_device() : nullptr),
        device(cpu != nullptr ? *cpu : *from.device),
        options(from),
        job(*from.job),
        log(from.recording),
        place(MeshPlace::of(job.program, from.rank)),
        groups(connect_groups(from)),
        stage(job, from.rank, device.place()),
        passes(job, stage, place, {.device = &device, .data = from.data}),
        state(job, stage, place, device),
        executor(job.program, from.rank, log, device) {
    tp_lane = job.split.stack.async_tensor_parallel ? start_lane("tp") : nullptr;
    cp_lane = start_lane("cp");
    ep_lane = start_lane("ep");
    if (ep_lane == nullptr) ep_lane = start_lane("etp");
    for (std::size_t i = 0; i < groups.size(); ++i) {
      const std::string& name = job.program.communicators[i].name;
      if (groups[i].communicator == nullptr) continue;
      kernel_groups[name] = {groups[i].communicator.get(), lane_of(name)};
    }
    register_gradients();
    wait_for(device);
  }

  /// Gradients that keep their memory between steps are known to the groups that reduce them.
  void register_gradients() {
    std::set<const Bucket*> registered;
    for (const Op& op : job.program.of(options.rank).ops) {
      if (op.kind != OpKind::Collective || op.payload != Payload::ChunkGradients) continue;
      Bucket& bucket = stage.bucket(op.chunk);
      if (!has_storage(bucket.grads()) || !registered.insert(&bucket).second) continue;
      registrations.push_back(group(op).communicator->register_buffer(bucket.grads()));
    }
  }

  WorkerThread* lane_of(std::string_view communicator) const {
    if (communicator == "tp") return tp_lane.get();
    if (communicator == "cp") return cp_lane.get();
    const bool moves_tokens =
        communicator == "ep" || communicator == "etp" || communicator == "etp_ep";
    return moves_tokens ? ep_lane.get() : nullptr;
  }

  /// A thread for the collectives of `communicator` inside passes; null if there are none.
  std::unique_ptr<WorkerThread> start_lane(std::string_view communicator) const {
    const auto& all = job.program.communicators;
    const bool is_there =
        std::ranges::find(all, communicator, &program::Communicator::name) != all.end();
    return is_there ? std::make_unique<WorkerThread>(device) : nullptr;
  }

  void run(OpId id) {
    const Op& op = job.program.of(options.rank).ops[id];
    switch (op.kind) {
      case OpKind::Compute:
        return compute(id, op);
      case OpKind::Send:
        return send(op);
      case OpKind::Recv:
        return recv(op);
      case OpKind::Collective:
        return collective(op);
      case OpKind::Host:
        FORESAIL_EXPECT(op.host == program::HostWork::LoadBatch);
        return passes.load_batch(step);
    }
  }

  void compute(OpId id, const Op& op) {
    const program::KernelList& list = job.program.kernel_lists[op.kernels.value];
    SpanClock clock(log, list, {id, step}, device);
    OpContext context({.list = &list,
                       .groups = &kernel_groups,
                       .device = &device,
                       .clock = log.is_on() ? &clock : nullptr,
                       .board = &executor.board()});
    const PassKey key{op.chunk, op.microbatch};
    state.before_pass(op);
    switch (op.pass) {
      case Pass::Forward:
        passes.forward(key, context);
        break;
      case Pass::Backward:
        passes.backward(key, context);
        break;
      case Pass::BackwardInput:
        passes.backward_input(key, context);
        break;
      case Pass::BackwardWeight:
        passes.backward_weight(key, context);
        break;
      case Pass::Optimizer:
        optimize(context, list);
        break;
    }
    state.after_pass(op);
    context.finish();
  }

  void optimize(OpContext& context, const program::KernelList& list) {
    const bool is_first = list.kernels.front().name == "optimizer";
    if (is_first && job.program.grid.world_size() == 1) {
      scalars = state.local_scalars(passes.take_loss());
    }
    const StateSync::OptimizerStep now{
        .gradient_norm = std::sqrt(scalars.squared_norm),
        .learning_rate = program::learning_rate_at(job.training, step)};
    for (const Kernel& kernel : list.kernels) {
      context.compute(kernel.name, [&] { state.optimize(kernel.name, now); });
    }
  }

  void send(const Op& op) {
    const at::Tensor message = passes.outgoing(op.payload, {op.chunk, op.microbatch});
    FORESAIL_EXPECT(static_cast<std::int64_t>(message.nbytes()) == op.bytes.count());
    group(op).communicator->send(message, member(op));
  }

  void recv(const Op& op) {
    at::Tensor message = passes.message_buffer(op.payload);
    FORESAIL_EXPECT(static_cast<std::int64_t>(message.nbytes()) == op.bytes.count());
    group(op).communicator->recv(message, member(op));
    passes.deliver(op.payload, {op.chunk, op.microbatch}, message);
  }

  void collective(const Op& op) {
    Communicator& communicator = *group(op).communicator;
    if (op.payload == Payload::StepScalars) {
      scalars = state.reduce(state.local_scalars(passes.take_loss()), communicator);
    } else {
      state.run(op, communicator);
    }
  }

  const Group& group(const Op& op) const {
    const Group& chosen = groups.at(op.communicator.value);
    FORESAIL_EXPECT(chosen.communicator != nullptr);
    return chosen;
  }

  /// Place of the peer stage's rank within the communicator.
  int member(const Op& op) const {
    const std::vector<RankId>& members = group(op).members;
    const RankId peer = job.program.peer(options.rank, op.peer_stage);
    const auto found = std::ranges::find(members, peer);
    FORESAIL_EXPECT(found != members.end());
    return static_cast<int>(found - members.begin());
  }

  void failed(const std::exception_ptr& failure) {
    options.endpoint->report_failure(message_of(failure));
    if (options.failed) options.failed(failure);
    for (const Group& each : groups) {
      if (each.communicator != nullptr) each.communicator->abort();
    }
  }

  std::unique_ptr<Device> cpu;  // null if options name a device
  Device& device;
  Options options;
  const Job& job;
  SpanLog log;
  MeshPlace place;
  std::vector<Group> groups;
  Stage stage;
  Passes passes;
  StateSync state;
  std::vector<std::shared_ptr<void>> registrations;  // handles that the communicators share
  std::unique_ptr<WorkerThread> tp_lane, cp_lane, ep_lane;
  KernelGroups kernel_groups;
  StepScalars scalars;
  int step = 0;
  Executor executor;
};

Trainer::Trainer(const Options& options) {
  FORESAIL_EXPECT(options.job != nullptr);
  FORESAIL_EXPECT(options.store != nullptr);
  FORESAIL_EXPECT(options.endpoint != nullptr);
  check_supported(*options.job);
  use_one_core();
  const TensorMemory::Opened opened(std::make_shared<TensorMemory>());
  impl_ = std::make_unique<Impl>(options);
}

Trainer::~Trainer() = default;

StepSummary Trainer::run_step() {
  StepSummary summary;
  summary.step = impl_->step;
  impl_->executor.board().begin_step(impl_->step);
  summary.start_ns = steady_ns();
  impl_->device.begin_step();
  impl_->passes.begin_step(impl_->step);
  impl_->executor.run_step(
      impl_->step, {.run = [this](OpId op) { impl_->run(op); },
                    .failed = [this](std::exception_ptr failure) { impl_->failed(failure); }});
  impl_->options.endpoint->check();
  summary.end_ns = steady_ns();
  impl_->log.settle(impl_->device);
  impl_->passes.finish_step();
  summary.peak_bytes = impl_->device.peak().count();
  summary.loss = impl_->scalars.loss;
  summary.data_wait_ns = impl_->passes.take_data_wait_ns();
  summary.gradient_norm = std::sqrt(impl_->scalars.squared_norm);
  summary.executed_digest = impl_->executor.executed_digest();
  ++impl_->step;
  impl_->executor.board().end_step();
  return summary;
}

void Trainer::read_weights(const std::filesystem::path& path) {
  FORESAIL_EXPECT(impl_->step == 0);
  const models::Model& model = impl_->job.model;
  check_weights(path, model, impl_->job.training.sequence_length);
  const Safetensors file(path);
  impl_->state.fill([&] {
    for (Bucket* bucket : impl_->stage.all_buckets()) {
      for (const auto& parameter : bucket->parameters()) {
        const auto parts = weight_parts(model, *parameter, impl_->place.tp_size, impl_->place.tp);
        edit_on_host(parameter->master, [&](at::Tensor& values) {
          read_parts(file, parts, values.data_ptr<float>());
        });
      }
    }
  });
  wait_for(impl_->device);
}

void Trainer::write_weights(const std::filesystem::path& path) const {
  const models::Model& model = impl_->job.model;
  const SafetensorsHead head = make_head(tensor_list(model, impl_->job.training.sequence_length));
  impl_->state.for_each_counted(
      [&](const Parameter& parameter, std::int64_t first, const at::Tensor& values) {
        const auto parts = weight_parts(model, parameter, impl_->place.tp_size, impl_->place.tp);
        write_part(path, head, parts, first, to_host(values).data_ptr<float>(), values.numel());
      });
}

Activity Trainer::activity() const {
  return impl_->executor.activity();
}

const std::vector<MeasuredSpan>& Trainer::spans() const {
  return impl_->log.spans();
}

const std::map<Lane, std::vector<OpId>>& Trainer::executed() const {
  return impl_->executor.executed();
}

void Trainer::run_on_compute_lane(const std::function<void()>& task) {
  impl_->executor.run_on(Lane::Compute, task);
}

}  // namespace foresail::runtime
