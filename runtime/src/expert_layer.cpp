#include "expert_layer.h"

#include <torch/csrc/autograd/autograd.h>

#include <cmath>

#include "expert_gemms.h"
#include "host_copy.h"
#include "transformer_layer.h"

namespace foresail::runtime {
namespace {

/// A graph of its own from a leaf to an output.
struct InnerGraph {
  at::Tensor leaf, output;

  template <class Forward>
  static InnerGraph run(const at::Tensor& input, const Forward& forward) {
    InnerGraph graph;
    graph.leaf = input.detach().requires_grad_();
    const at::AutoGradMode on(true);
    graph.output = forward(graph.leaf);
    return graph;
  }
  /// The gradient of the leaf; the graph goes.
  at::Tensor backward(const at::Tensor& grad) {
    torch::autograd::backward({output}, {grad});
    const at::Tensor result = leaf.grad();
    *this = {};
    return result;
  }
};

/// What a forward pass leaves behind for the backward pass.
struct ExpertState : torch::CustomClassHolder {
  at::Tensor input;
  Routing routing;
  at::Tensor sample_counts;  ///< [samples, experts], of whole sequences; with a balance loss alone
  RowExchange exchange;
  at::Tensor fc1_input, fc1_output, fc2_input;
  at::Tensor returned;  ///< rows as the experts gave them back
  InnerGraph shared_in, shared_out;
  at::Tensor gate;  ///< [T, 1], of the shared experts
};

/// Rows on their way.
struct Moving {
  at::Tensor rows;
  std::vector<Pending> pending;
  void wait() {
    for (Pending& each : pending) each.wait();
  }
};

/// One pass over a layer's experts.
class ExpertPass {
 public:
  ExpertPass(const ExpertLayer& layer, ExpertState& state)
      : layer_(layer),
        op_(layer.scope().context()),
        place_(layer.scope().experts),
        is_overlapped_(layer.scope().split->overlap_ep),
        state_(state) {}

  at::Tensor forward(const at::Tensor& input) {
    state_.input = input;
    const at::Tensor logits =
        op_.compute("router", [&] { return product(input, options().router->value.t()); });
    op_.compute("router.topk", [&] { state_.routing = route(experts(), logits); });
    if (experts().balance_loss > 0) count_sequences();
    state_.exchange = plan_exchange(place_, all_counts());
    at::Tensor& order = state_.exchange.order;
    if (order.defined()) order = order.to(input.device());
    const at::Tensor sent =
        op_.compute("permute", [&] { return state_.routing.tokens_to_rows(input); });
    Moving moving = carry_out({"ep.dispatch", "etp.gather_experts"}, sent);
    if (is_overlapped_) shared_in();
    moving.wait();
    const at::Tensor made = in_padded_order("experts.unsort", run_experts(moving));
    moving = carry_home({"etp.scatter_experts", "ep.combine"}, made);
    if (is_overlapped_) shared_out();
    moving.wait();
    state_.returned = moving.rows;
    at::Tensor output = op_.compute("unpermute", [&] {
      const at::Tensor weights = state_.routing.weights.unsqueeze(-1);
      const at::Tensor copies = state_.routing.rows_to_copies(state_.returned);
      return rounded((copies * weights).sum(1), input);
    });
    if (!is_overlapped_) {
      shared_in();
      shared_out();
    }
    add_shared(output);
    return output;
  }

  at::Tensor backward(const at::Tensor& grad) {
    at::Tensor input_grad = at::zeros_like(state_.input);
    if (!is_overlapped_) {
      shared_out_backward(grad, input_grad);
      shared_in_backward(input_grad);
    }
    at::Tensor weight_grads;
    const at::Tensor sent =
        op_.compute("unpermute.backward", [&] { return unpermute_backward(grad, weight_grads); });
    state_.returned.reset();
    Moving moving = carry_out({"ep.combine_grad", "etp.gather_grad_experts"}, sent);
    if (is_overlapped_) shared_out_backward(grad, input_grad);
    moving.wait();
    const at::Tensor made = in_padded_order("experts.sort.backward", experts_backward(moving));
    moving = carry_home({"etp.scatter_grad_experts", "ep.dispatch_grad"}, made);
    if (is_overlapped_) shared_in_backward(input_grad);
    moving.wait();
    op_.compute("permute.backward", [&] {
      input_grad.add_(widened(state_.routing.rows_to_copies(moving.rows)).sum(1));
    });
    route_backward(weight_grads, input_grad);
    return input_grad;
  }

 private:
  const ExpertLayer::Options& options() const { return layer_.options(); }
  const models::Experts& experts() const { return layer_.scope().model->experts; }

  /// Choices of whole sequences, which sequence and context parallelism cut.
  void count_sequences() {
    state_.sample_counts = count_by_sample(state_.routing, layer_.scope().split->microbatch_size);
    for (const std::string group : {"tp", "cp"}) {
      if (op_.group_size(group) == 1) continue;
      op_.all_reduce(group + ".router_counts", state_.sample_counts, Reduction::Sum);
    }
  }

  std::int64_t hidden() const { return layer_.scope().model->hidden; }

  /// Rows per expert on every rank that exchanges tokens with this one, in host memory, since
  /// sizes follow from them. What a capacity fixes is not asked for.
  at::Tensor all_counts() {
    const Routing& routing = state_.routing;
    const int ranks = place_.ep_size * place_.etp_size;
    if (routing.capacity > 0) {
      return at::full({ranks, routing.counts.numel()}, routing.capacity, at::kLong);
    }
    const at::Tensor own = routing.counts.unsqueeze(0);
    if (ranks == 1) return to_host(own);
    if (place_.ep_size > 1 && place_.etp_size > 1) {
      return to_host(op_.all_gather("etp_ep.counts", own));
    }
    return to_host(op_.all_gather(place_.ep_size > 1 ? "ep.counts" : "etp.counts", own));
  }

  struct Names {
    std::string first, second;
  };

  std::optional<std::int64_t> planned(std::int64_t rows) const {
    if (layer_.is_dropless()) return std::nullopt;
    return rows * hidden() * static_cast<std::int64_t>(state_.input.element_size());
  }

  /// To the ranks of the experts, and to all ranks of their tensor-parallel groups.
  Moving carry_out(const Names& names, const at::Tensor& rows) {
    Moving moving{rows, {}};
    const RowExchange& exchange = state_.exchange;
    if (place_.ep_size > 1) {
      moving.rows = at::empty({exchange.received, hidden()}, rows.options());
      moving.pending.push_back(
          op_.start(names.first, Collective::AllToAll, planned(rows.size(0)),
                    [rows, out = moving.rows, exchange](Communicator& ep) mutable {
                      ep.all_to_all_rows(rows, exchange.sends, out, exchange.receives);
                    }));
    }
    if (place_.etp_size > 1) {
      const at::Tensor own = moving.rows;
      moving.rows = at::empty({place_.etp_size * exchange.padded, hidden()}, rows.options());
      moving.pending.push_back(
          op_.start(names.second, Collective::AllGather, planned(moving.rows.size(0)),
                    [own, out = moving.rows, padded = exchange.padded](Communicator& etp) mutable {
                      etp.all_gather(pad(own, padded), out);
                    }));
    }
    return moving;
  }

  /// The way back; partial sums over a tensor-parallel group are added up on it.
  Moving carry_home(const Names& names, const at::Tensor& rows) {
    Moving moving{rows, {}};
    const RowExchange& exchange = state_.exchange;
    if (place_.etp_size > 1) {
      at::Tensor sum = at::empty({exchange.padded, hidden()}, rows.options());
      moving.pending.push_back(
          op_.start(names.first, Collective::ReduceScatter, planned(rows.size(0)),
                    [rows, sum](Communicator& etp) mutable { etp.reduce_scatter(rows, sum); }));
      moving.rows = sum.narrow(0, 0, exchange.received);
    }
    if (place_.ep_size > 1) {
      const at::Tensor own = moving.rows;
      const auto home = static_cast<std::int64_t>(state_.routing.copy.numel());
      moving.rows = at::empty({home, hidden()}, rows.options());
      moving.pending.push_back(
          op_.start(names.second, Collective::AllToAll, planned(home),
                    [own, out = moving.rows, exchange](Communicator& ep) mutable {
                      ep.all_to_all_rows(own, exchange.receives, out, exchange.sends);
                    }));
    }
    return moving;
  }

  static at::Tensor pad(const at::Tensor& rows, std::int64_t count) {
    if (rows.size(0) == count) return rows;
    at::Tensor padded = at::zeros({count, rows.size(1)}, rows.options());
    padded.narrow(0, 0, rows.size(0)).copy_(rows);
    return padded;
  }

  /// Whether putting rows in order is a kernel of the Program.
  bool has_sort_kernel() const {
    return place_.ep_size * place_.etp_size > 1 && state_.exchange.rows_of_expert.size() > 1;
  }
  template <class Work>
  at::Tensor sorted(const std::string& kernel, const Work& work) {
    return has_sort_kernel() ? op_.compute(kernel, work) : work();
  }
  at::Tensor by_expert(const std::string& kernel, const at::Tensor& rows) {
    const at::Tensor& order = state_.exchange.order;
    if (!order.defined()) return rows;
    return sorted(kernel, [&] { return rows.index_select(0, order); });
  }
  at::Tensor in_padded_order(const std::string& kernel, const at::Tensor& rows) {
    const at::Tensor& order = state_.exchange.order;
    if (!order.defined()) return rows;
    return sorted(kernel, [&] {
      const std::int64_t count =
          place_.etp_size > 1 ? place_.etp_size * state_.exchange.padded : state_.exchange.received;
      return at::zeros({count, rows.size(1)}, rows.options()).index_copy_(0, order, rows);
    });
  }

  ExpertRows layout() const { return {state_.exchange.rows_of_expert, !layer_.is_dropless()}; }

  /// That the GEMM adds: without fused kernels the activation does.
  std::shared_ptr<Parameter> fc1_bias() const {
    return has_fused_kernels(layer_.scope()) ? options().fc1_bias : nullptr;
  }
  ActivationKernels activation() const {
    const auto& bias = options().fc1_bias;
    return {.scope = &layer_.scope(),
            .prefix = "experts.",
            .add_bias = [rows = layout(),
                         bias](at::Tensor& values) { add_expert_bias(rows, values, *bias); },
            .take_bias_gradient =
                [rows = layout(), bias](const at::Tensor& grad) {
                  take_expert_bias_gradient(rows, grad, *bias);
                }};
  }

  at::Tensor run_experts(Moving& arrived) {
    state_.fc1_input = by_expert("experts.sort", std::exchange(arrived.rows, {}));
    state_.fc1_output = expert_forward(op_, "experts.fc1", layout(), state_.fc1_input,
                                       *options().fc1, fc1_bias().get());
    state_.fc2_input = activate(activation(), state_.fc1_output);
    // Partial sums over expert tensor parallelism: one of them has the bias.
    const bool has_bias = place_.etp == 0;
    return expert_forward(op_, "experts.fc2", layout(), state_.fc2_input, *options().fc2,
                          has_bias ? options().fc2_bias.get() : nullptr);
  }

  at::Tensor experts_backward(Moving& arrived) {
    at::Tensor grad = by_expert("experts.unsort.backward", std::exchange(arrived.rows, {}));
    const at::Tensor activated =
        expert_input_gradient(op_, "experts.fc2", layout(), grad, *options().fc2);
    on_weights("experts.fc2", grad, std::exchange(state_.fc2_input, {}), options().fc2,
               options().fc2_bias);
    grad = activate_backward(activation(), activated, state_.fc1_output);
    state_.fc1_output.reset();
    const at::Tensor result =
        expert_input_gradient(op_, "experts.fc1", layout(), grad, *options().fc1);
    on_weights("experts.fc1", grad, std::exchange(state_.fc1_input, {}), options().fc1, fc1_bias());
    return result;
  }

  void on_weights(const std::string& linear, const at::Tensor& grad, const at::Tensor& input,
                  const std::shared_ptr<Parameter>& weight,
                  const std::shared_ptr<Parameter>& bias) {
    layer_.scope().on_weights([=, rows = layout()](OpContext& at) {
      expert_weight_gradient(at, linear, rows, grad, input, *weight, bias.get());
    });
  }

  /// Gradients of the rows that the experts gave back; `weight_grads` [T, per_token].
  at::Tensor unpermute_backward(const at::Tensor& grad, at::Tensor& weight_grads) const {
    const Routing& routing = state_.routing;
    const at::Tensor by_token = grad.unsqueeze(1);
    weight_grads = (widened(routing.rows_to_copies(state_.returned)) * by_token).sum(-1);
    const at::Tensor copies = rounded(by_token * routing.weights.unsqueeze(-1), grad);
    return routing.copies_to_rows(copies.view({-1, grad.size(1)}));
  }

  void route_backward(const at::Tensor& weight_grads, at::Tensor& input_grad) {
    const Routing& routing = state_.routing;
    const at::Tensor logits = op_.compute("router.topk.backward", [&] {
      at::Tensor grads = at::zeros_like(routing.probabilities);
      grads.scatter_(1, routing.experts, weight_grads);
      if (state_.sample_counts.defined()) {
        const StageScope& scope = layer_.scope();
        grads.add_(balance_gradient({.experts = &experts(),
                                     .sequence_length = scope.split->sequence_length,
                                     .global_batch_size = scope.global_batch_size},
                                    state_.sample_counts, grads.size(0)));
      }
      return at::_softmax_backward_data(grads, routing.probabilities, -1, at::kFloat);
    });
    op_.compute("router.dgrad", [&] { input_grad.add_(product(logits, options().router->value)); });
    layer_.scope().on_weights(
        [router = options().router, logits, input = state_.input](OpContext& at) {
          at.compute("router.wgrad", [&] { add_product(router->grad, logits.t(), input); });
        });
  }

  void shared_in() {
    if (!layer_.has_shared()) return;
    state_.shared_in = InnerGraph::run(state_.input, [&](const at::Tensor& leaf) {
      return layer_.shared_activation().forward(options().shared_fc1->forward(leaf));
    });
  }
  void shared_out() {
    if (!layer_.has_shared()) return;
    state_.shared_out = InnerGraph::run(state_.shared_in.output, [&](const at::Tensor& leaf) {
      return options().shared_fc2->forward(leaf);
    });
  }
  void add_shared(at::Tensor& output) {
    if (!layer_.has_shared()) return;
    at::Tensor shared = state_.shared_out.output.detach();
    if (options().shared_gate != nullptr) {
      shared = op_.compute("shared.scale", [&] {
        const at::Tensor& weight = options().shared_gate->value;
        state_.gate = (widened(state_.input) * weight).sum(-1, true).sigmoid_();
        return rounded(shared * state_.gate, shared);
      });
    }
    op_.compute("shared.add", [&] { output.add_(shared); });
  }

  void shared_out_backward(const at::Tensor& grad, at::Tensor& input_grad) {
    if (!layer_.has_shared()) return;
    at::Tensor scaled = grad;
    if (options().shared_gate != nullptr) {
      scaled = op_.compute("shared.scale.backward", [&] {
        const at::Tensor& gate = state_.gate;
        const at::Tensor along = (widened(grad) * state_.shared_out.output.detach()).sum(-1, true);
        const at::Tensor slope = along * gate * (1 - gate);
        input_grad.add_(slope * options().shared_gate->value);
        options().shared_gate->grad.add_((slope * state_.input).sum(0));
        return rounded(grad * gate, grad);
      });
    }
    shared_grad_ = state_.shared_out.backward(scaled);
  }
  void shared_in_backward(at::Tensor& input_grad) {
    if (!layer_.has_shared()) return;
    input_grad.add_(state_.shared_in.backward(std::exchange(shared_grad_, {})));
  }

  const ExpertLayer& layer_;
  OpContext& op_;
  const ExpertPlace& place_;
  bool is_overlapped_;
  ExpertState& state_;
  at::Tensor shared_grad_;
};

struct ExpertFunction : torch::autograd::Function<ExpertFunction> {
  static at::Tensor forward(AutogradContext* graph, at::Tensor input, const ExpertLayer* layer) {
    auto state = c10::make_intrusive<ExpertState>();
    const at::Tensor output = ExpertPass(*layer, *state).forward(input.detach());
    graph->saved_data["state"] = c10::IValue::make_capsule(state);
    ModulePointer<ExpertLayer>::save(graph, layer);
    return output;
  }

  static variable_list backward(AutogradContext* graph, variable_list grads) {
    const ExpertLayer& layer = ModulePointer<ExpertLayer>::load(graph);
    const auto capsule = graph->saved_data.at("state").toCapsule();
    auto& state = static_cast<ExpertState&>(*capsule);
    const at::Tensor result = ExpertPass(layer, state).backward(grads[0].contiguous());
    graph->saved_data.erase("state");
    return {result, at::Tensor()};
  }
};

}  // namespace

ExpertLayer::ExpertLayer(const StageScope& scope, const Options& options)
    : scope_(scope), options_(options) {
  for (const auto& [name, parameter] :
       {std::pair{"router", options.router}, std::pair{"fc1", options.fc1},
        std::pair{"fc1_bias", options.fc1_bias}, std::pair{"fc2", options.fc2},
        std::pair{"fc2_bias", options.fc2_bias}, std::pair{"shared_gate", options.shared_gate}}) {
    if (parameter != nullptr) register_buffer(name, parameter->value);
  }
  if (!has_shared()) return;
  register_module("shared_fc1", options.shared_fc1);
  register_module("shared_fc2", options.shared_fc2);
  shared_activation_ =
      register_module("shared_activation",
                      std::make_shared<ActivationLayer>(scope, "shared_", options.shared_bias));
}

at::Tensor ExpertLayer::forward(const at::Tensor& input) {
  return ExpertFunction::apply(input, static_cast<const ExpertLayer*>(this));
}

void take_experts(const StageScope& scope, Bucket& bucket, const std::string& prefix,
                  ExpertLayer::Options& options) {
  const models::Model& model = *scope.model;
  const ExpertPlace& place = scope.experts;
  const std::int64_t hidden = model.hidden;
  const std::int64_t local = model.experts.count / place.ep_size;
  const std::int64_t ffn = model.experts.ffn / place.etp_size;
  const bool is_gated = model.activation == models::Activation::SwiGlu;
  const std::vector<std::string> parts =
      is_gated ? std::vector<std::string>{"gate", "up"} : std::vector<std::string>{"fc1"};
  const std::int64_t width = ffn * static_cast<std::int64_t>(parts.size());
  options.fc1 = bucket.take(prefix + "experts.fc1.weight", Spread::Sharded, {local, width, hidden});
  options.fc2 = bucket.take(prefix + "experts.fc2.weight", Spread::Sharded, {local, hidden, ffn});
  options.fc1->stacked = local;
  options.fc2->stacked = local;
  if (model.biases) {
    options.fc1_bias = bucket.take(prefix + "experts.fc1.bias", Spread::Sharded, {local, width});
    options.fc2_bias =
        bucket.take(prefix + "experts.fc2.bias", Spread::Replicated, {local, hidden});
  }
  const double deviation = kInitialDeviation / std::sqrt(2.0 * model.layers);
  for (std::int64_t expert = 0; expert < local; ++expert) {
    const std::string name = prefix + "experts." + std::to_string(place.ep * local + expert) + ".";
    for (std::size_t part = 0; part < parts.size(); ++part) {
      const Block rows{.first_row = place.etp * ffn,
                       .rows = ffn,
                       .first_column = 0,
                       .columns = hidden,
                       .total_columns = hidden};
      fill_normal(options.fc1->master.select(0, expert).narrow(
                      0, static_cast<std::int64_t>(part) * ffn, ffn),
                  name + parts[part], rows, scope.seed, kInitialDeviation);
    }
    const Block columns{.first_row = 0,
                        .rows = hidden,
                        .first_column = place.etp * ffn,
                        .columns = ffn,
                        .total_columns = model.experts.ffn};
    fill_normal(options.fc2->master.select(0, expert), name + "fc2", columns, scope.seed,
                deviation);
  }
}

}  // namespace foresail::runtime
