#include "passes.h"

#include <torch/csrc/autograd/autograd.h>

#include "host_copy.h"
#include "span_log.h"

namespace foresail::runtime {

using program::Payload;

Passes::Passes(const Job& job, Stage& stage, const MeshPlace& place, const Sources& sources)
    : job_(job),
      stage_(stage),
      place_(place),
      from_(sources),
      stages_(job.program.global_stages()) {
  FORESAIL_EXPECT(sources.device != nullptr);
}

void Passes::begin_step(int step) {
  stage_.scope().drawing.key = dropout_key(job_.seed, step);
}

/// Sample (microbatch, replica, place) of a step is its global sample
/// (microbatch * dp + replica) * microbatch_size + place.
std::int64_t Passes::first_sample(int microbatch) const {
  return (std::int64_t{microbatch} * place_.dp_size + place_.dp) * job_.split.microbatch_size;
}

void Passes::load_batch(int step) {
  FORESAIL_EXPECT(from_.data != nullptr);
  const std::int64_t samples = job_.split.microbatch_size;
  const std::int64_t positions = job_.split.sequence_length;
  const std::int64_t first = step * job_.training.global_batch_size;
  std::vector<std::int64_t> indices;
  for (int microbatch = 0; microbatch < job_.program.microbatches; ++microbatch) {
    for (std::int64_t sample = 0; sample < samples; ++sample) {
      indices.push_back(first + first_sample(microbatch) + sample);
    }
  }
  std::vector<std::int32_t> tokens(indices.size() * static_cast<std::size_t>(positions + 1));
  const std::int64_t start_ns = steady_ns();
  from_.data->load(step, indices, tokens);
  data_wait_ns_ += steady_ns() - start_ns;
  const at::Tensor text =
      at::from_blob(tokens.data(), {job_.program.microbatches, samples, positions + 1}, at::kInt)
          .transpose(1, 2)
          .to(at::kLong)
          .to(stage_.scope().device);
  tokens_.clear();
  targets_.clear();
  for (int microbatch = 0; microbatch < job_.program.microbatches; ++microbatch) {
    const at::Tensor& own = stage_.scope().tables.positions;
    tokens_.push_back(text[microbatch].index_select(0, own).reshape({-1}));
    targets_.push_back(text[microbatch].index_select(0, own + 1).reshape({-1}));
  }
}

std::int64_t Passes::take_data_wait_ns() {
  return std::exchange(data_wait_ns_, 0);
}

void Passes::use_batch(std::vector<at::Tensor> tokens, std::vector<at::Tensor> targets) {
  tokens_ = std::move(tokens);
  targets_ = std::move(targets);
}

void Passes::forward(PassKey key, OpContext& context) {
  Chunk& chunk = stage_.chunk(key.chunk);
  const auto microbatch = static_cast<std::size_t>(key.microbatch);
  stage_.scope().op = &context;
  stage_.scope().drawing.first_sample = first_sample(key.microbatch);
  at::Tensor input;
  if (chunk.part().has_embedding()) {
    input = tokens_.at(microbatch);
  } else {
    input =
        whole_message(Payload::Activation, context, inputs_.take(key)).detach().requires_grad_();
    leaves_.put(key, input);
  }
  const bool is_last = chunk.part().has_head();
  const at::Tensor output = chunk.forward(input, is_last ? targets_.at(microbatch) : at::Tensor());
  stage_.scope().op = nullptr;
  if (is_last) {
    losses_.push_back(output.detach());
  } else {
    hand_on(Payload::Activation, key, output.detach());
    // The backward pass needs the graph behind the output, not its values.
    at::Tensor(output).set_data(at::empty({0}, output.options()));
  }
  roots_.put(key, output);
}

/// Backward through the autograd graph. The seed of the gradient makes sums over microbatches and
/// replicas the mean over the batch.
void Passes::backward(PassKey key, OpContext& context) {
  propagate(key, context);
}

void Passes::backward_input(PassKey key, OpContext& context) {
  const auto [place, is_new] = deferred_.try_emplace(key);
  FORESAIL_EXPECT(is_new);
  stage_.scope().deferred = &place->second;
  propagate(key, context);
  stage_.scope().deferred = nullptr;
}

void Passes::backward_weight(PassKey key, OpContext& context) {
  const auto found = deferred_.find(key);
  FORESAIL_EXPECT(found != deferred_.end());
  const at::AutoGradMode no_graph(false);  // as within a backward pass
  stage_.scope().op = &context;
  for (const auto& work : found->second) work(context);
  stage_.scope().op = nullptr;
  deferred_.erase(found);
}

void Passes::propagate(PassKey key, OpContext& context) {
  Chunk& chunk = stage_.chunk(key.chunk);
  stage_.scope().op = &context;
  stage_.scope().drawing.first_sample = first_sample(key.microbatch);
  at::Tensor grad;
  if (chunk.part().has_head()) {
    const double weight = 1.0 / (job_.program.microbatches * place_.copies());
    grad = at::full({}, weight, at::device(stage_.scope().device).dtype(at::kDouble));
  } else {
    grad = whole_message(Payload::Gradient, context, output_grads_.take(key));
  }
  torch::autograd::backward({roots_.take(key)}, {grad});
  stage_.scope().op = nullptr;
  if (chunk.part().has_embedding()) return;
  hand_on(Payload::Gradient, key, leaves_.take(key).grad());
}

/// The neighbour chunk is on this rank, or a Send fetches the tensor.
void Passes::hand_on(Payload payload, PassKey key, const at::Tensor& tensor) {
  const bool is_activation = payload == Payload::Activation;
  const program::ChunkPlace here{place_.pp, key.chunk};
  const auto to = is_activation ? stages_.next(here) : stages_.previous(here);
  FORESAIL_EXPECT(to.has_value());
  const at::Tensor message = as_message(payload, tensor);
  if (to->stage == place_.pp) {
    deliver(payload, {to->chunk, key.microbatch}, message);
  } else {
    (is_activation ? sent_activations_ : sent_gradients_).put(key, message);
  }
}

at::Tensor Passes::outgoing(Payload payload, PassKey key) {
  return (payload == Payload::Activation ? sent_activations_ : sent_gradients_).take(key);
}

void Passes::deliver(Payload payload, PassKey key, at::Tensor message) {
  (payload == Payload::Activation ? inputs_ : output_grads_).put(key, std::move(message));
}

/// Without sequence parallelism each rank of a tensor-parallel group sends its part of the rows
/// (SC'21, section 4.1) if the stack says so.
bool Passes::is_gathered(Payload payload) const {
  return place_.pp_size > 1 && place_.tp_size > 1 && !job_.split.sequence_parallel &&
         job_.split.stack.shards_messages(payload == Payload::Gradient);
}

at::Tensor Passes::as_message(Payload payload, const at::Tensor& whole) const {
  if (!is_gathered(payload)) return whole.contiguous();
  const std::int64_t part = whole.numel() / place_.tp_size;
  return whole.contiguous().view(-1).narrow(0, place_.tp * part, part).clone();
}

at::Tensor Passes::whole_message(Payload payload, OpContext& context,
                                 const at::Tensor& message) const {
  from_.device->keep(message);
  if (!is_gathered(payload)) return message;
  return context.all_gather("tp.gather_input", message).view({-1, job_.model.hidden});
}

at::Tensor Passes::message_buffer(Payload payload) const {
  const models::Split& split = job_.split;
  const at::TensorOptions options =
      at::device(stage_.scope().device).dtype(scalar_type(job_.training.precision));
  const std::int64_t tokens = split.sequence_length / split.cp * split.microbatch_size;
  if (is_gathered(payload)) {
    return at::empty({tokens * job_.model.hidden / place_.tp_size}, options);
  }
  const std::int64_t shards = split.sequence_parallel ? place_.tp_size : 1;
  return at::empty({tokens / shards, job_.model.hidden}, options);
}

double Passes::take_loss() {
  double sum = 0;
  if (losses_.empty()) return sum;
  const at::Tensor values = to_host(at::stack(losses_));
  losses_.clear();
  for (std::int64_t i = 0; i < values.numel(); ++i) {
    sum += values[i].item<double>() / job_.program.microbatches;
  }
  return sum;
}

void Passes::finish_step() {
  for (Shelf* shelf :
       {&inputs_, &roots_, &leaves_, &output_grads_, &sent_activations_, &sent_gradients_}) {
    FORESAIL_EXPECT(shelf->is_empty());
  }
  FORESAIL_EXPECT(deferred_.empty());
  FORESAIL_EXPECT(losses_.empty());
}

}  // namespace foresail::runtime
