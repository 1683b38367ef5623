#include "experts.h"

#include "activation.h"
#include "linear.h"

namespace foresail::models {
namespace {

constexpr std::int64_t kCount = 8;  // bytes of an int64

/// Writes the kernels of one pass over a layer's experts.
class ExpertPass {
 public:
  ExpertPass(PassKernels& pass, const Model& model, const Stack& stack, const ExpertShare& experts)
      : pass_(pass), model_(model), stack_(stack), experts_(experts) {}

  void forward(ExpertExtent extent) {
    route();
    if (experts_.is_dropless) count();
    rows("permute", experts_.tokens + experts_.copies);
    std::vector<int> moving = trade("ep.dispatch");
    extend(moving, gather("etp.gather_experts"));
    if (experts_.is_overlapped) shared_in();
    pass_.await(moving);
    grouped_forward();
    moving = scatter("etp.scatter_experts");
    extend(moving, trade("ep.combine"));
    if (experts_.is_overlapped) shared_out();
    pass_.await(moving);
    const bool is_whole = extent == ExpertExtent::Whole;
    // Without shared experts behind them, rows on their way home are the last that is kept.
    const bool has_more = experts_.has_shared() && !experts_.is_overlapped;
    if (!is_whole && !has_more) return;
    rows("unpermute", experts_.tokens + experts_.copies);
    if (!experts_.is_overlapped) {
      shared_in();
      if (is_whole || experts_.has_shared_gate) shared_out();
    }
    if (is_whole) shared_sum();
  }

  void backward(const Split& split) {
    if (split.reruns(&RecomputeModules::mlp)) {
      pass_.set_suffix(".recompute");
      forward(stack_.early_stop_recompute ? ExpertExtent::UpToLastSaved : ExpertExtent::Whole);
      pass_.set_suffix("");
    } else {
      reruns_activation_ = split.reruns(&RecomputeModules::activation);
    }
    if (!experts_.is_overlapped) {
      shared_out_backward();
      shared_in_backward();
    }
    // Also the gradients of the weights, from the experts' own outputs.
    rows("unpermute.backward", experts_.tokens + 2 * experts_.copies);
    std::vector<int> moving = trade("ep.combine_grad");
    extend(moving, gather("etp.gather_grad_experts"));
    if (experts_.is_overlapped) shared_out_backward();
    pass_.await(moving);
    grouped_backward();
    moving = scatter("etp.scatter_grad_experts");
    extend(moving, trade("ep.dispatch_grad"));
    if (experts_.is_overlapped) shared_in_backward();
    pass_.await(moving);
    rows("permute.backward", experts_.tokens + experts_.copies);
    route_backward();
  }

 private:
  const Share& share() const { return pass_.share(); }
  static void extend(std::vector<int>& list, const std::vector<int>& more) {
    list.insert(list.end(), more.begin(), more.end());
  }

  /// A kernel that reads and writes `count` rows of h in all.
  void rows(const std::string& name, std::int64_t count) {
    pass_.elementwise(name, count * share().hidden * share().element);
  }

  GemmShape router_shape() const { return {experts_.tokens, experts_.experts, share().hidden}; }
  /// Reads logits, writes and reads fp32 probabilities, writes a flag.
  std::int64_t choice_bytes() const {
    return experts_.tokens * experts_.experts * (share().element + 2 * kFp32 + 1);
  }

  void route() {
    pass_.gemm("router", share().dtype, router_shape());
    pass_.elementwise("router.topk", choice_bytes());
    if (model_.experts.balance_loss > 0) count_by_sample();
  }

  /// The balance loss needs the choices of whole sequences.
  void count_by_sample() {
    const std::int64_t bytes = share().samples * experts_.experts * kFp32;
    if (share().is_sequence_parallel) {
      pass_.await({pass_.collective("tp.router_counts", Collective::AllReduce, bytes)});
    }
    if (share().is_context_parallel) {
      pass_.await({pass_.collective("cp.router_counts", Collective::AllReduce, bytes, Lane::Cp)});
    }
  }

  void route_backward() {
    pass_.elementwise("router.topk.backward", choice_bytes());
    const GemmShape shape = router_shape();
    pass_.gemm("router.dgrad", share().dtype, {shape.m, shape.k, shape.n});
    pass_.gemm("router.wgrad", share().dtype, {shape.n, shape.k, shape.m}, GemmResult::Accumulated);
  }

  /// Everyone learns what everyone sends.
  void count() {
    const std::int64_t ranks = std::int64_t{experts_.ep} * experts_.expert_tp;
    if (ranks == 1) return;
    std::string name = experts_.ep > 1 ? "ep.counts" : "etp.counts";
    if (experts_.ep > 1 && experts_.expert_tp > 1) name = "etp_ep.counts";
    pass_.await({pass_.collective(name, Collective::AllGather, ranks * experts_.experts * kCount,
                                  Lane::Ep)});
  }

  std::vector<int> trade(const std::string& name) {
    if (experts_.ep == 1) return {};
    return {pass_.collective(name, Collective::AllToAll,
                             experts_.exchanged * share().hidden * share().element, Lane::Ep)};
  }
  std::vector<int> over_expert_tp(const std::string& name, Collective kind) {
    if (experts_.expert_tp == 1) return {};
    return {pass_.collective(name, kind, experts_.gathered * share().hidden * share().element,
                             Lane::Ep)};
  }
  std::vector<int> gather(const std::string& name) {
    return over_expert_tp(name, Collective::AllGather);
  }
  std::vector<int> scatter(const std::string& name) {
    return over_expert_tp(name, Collective::ReduceScatter);
  }

  ActivationShape activation() const {
    return {"experts.", experts_.gathered, experts_.fc1_width, experts_.ffn};
  }

  std::string name_of(const std::string& linear, std::size_t batch) const {
    return part_name(linear, static_cast<int>(batch), static_cast<int>(experts_.batches.size()));
  }
  void cast(const std::string& name, std::int64_t columns) {
    const bool is_fp8 = share().linear_dtype == DType::Fp8;
    if (is_fp8) pass_.elementwise(name, 4 * experts_.gathered * columns);
  }

  /// Each expert's rows times its own matrix.
  void grouped(const std::string& name, std::int64_t out, std::int64_t in) {
    cast(name + ".cast", in);
    for (std::size_t i = 0; i < experts_.batches.size(); ++i) {
      const ExpertShare::Batch& batch = experts_.batches[i];
      pass_.gemm(name_of(name, i), share().linear_dtype, {batch.tokens, out, in, batch.experts});
    }
  }
  void grouped_grad(const std::string& name, std::int64_t out, std::int64_t in) {
    cast(name + ".cast_grad", out);
    for (std::size_t i = 0; i < experts_.batches.size(); ++i) {
      const ExpertShare::Batch& batch = experts_.batches[i];
      pass_.gemm(name_of(name, i) + ".dgrad", share().linear_dtype,
                 {batch.tokens, in, out, batch.experts});
    }
    for (std::size_t i = 0; i < experts_.batches.size(); ++i) {
      const ExpertShare::Batch& batch = experts_.batches[i];
      pass_.gemm(name_of(name, i) + ".wgrad", share().linear_dtype,
                 {out, in, batch.tokens, batch.experts}, GemmResult::Accumulated);
    }
  }

  void grouped_forward() {
    if (experts_.needs_sort()) rows("experts.sort", 2 * experts_.gathered);
    grouped("experts.fc1", experts_.fc1_width, share().hidden);
    activation_forward(pass_, model_, stack_, activation());
    grouped("experts.fc2", share().hidden, experts_.ffn);
    if (experts_.needs_sort()) rows("experts.unsort", 2 * experts_.gathered);
  }

  void rerun_activation(const ActivationShape& shape) {
    if (!reruns_activation_) return;
    pass_.set_suffix(".recompute");
    activation_forward(pass_, model_, stack_, shape);
    pass_.set_suffix("");
  }

  void grouped_backward() {
    if (experts_.needs_sort()) rows("experts.unsort.backward", 2 * experts_.gathered);
    rerun_activation(activation());
    grouped_grad("experts.fc2", share().hidden, experts_.ffn);
    activation_backward(pass_, model_, stack_, activation());
    grouped_grad("experts.fc1", experts_.fc1_width, share().hidden);
    if (experts_.needs_sort()) rows("experts.sort.backward", 2 * experts_.gathered);
  }

  Linear shared_fc1() const {
    return {.name = "shared_fc1",
            .in = share().hidden,
            .out = experts_.shared_fc1_width,
            .dtype = share().linear_dtype,
            .is_pipelined = share().is_pipelined};
  }
  Linear shared_fc2() const {
    return {.name = "shared_fc2",
            .in = experts_.shared_ffn,
            .out = share().hidden,
            .dtype = share().linear_dtype,
            .is_pipelined = share().is_pipelined};
  }
  ActivationShape shared_activation() const {
    return {"shared_", share().tokens, experts_.shared_fc1_width, experts_.shared_ffn};
  }

  void shared_in() {
    if (!experts_.has_shared()) return;
    column_forward(pass_, shared_fc1());
    activation_forward(pass_, model_, stack_, shared_activation());
  }
  void shared_out() {
    if (experts_.has_shared()) row_forward(pass_, shared_fc2());
  }
  /// Adds the shared experts' output, scaled if there is a gate.
  void shared_sum() {
    if (!experts_.has_shared()) return;
    if (experts_.has_shared_gate) rows("shared.scale", 3 * experts_.tokens);
    rows("shared.add", 3 * experts_.tokens);
  }
  void shared_out_backward() {
    if (!experts_.has_shared()) return;
    if (experts_.has_shared_gate) rows("shared.scale.backward", 5 * experts_.tokens);
    rerun_activation(shared_activation());
    row_backward(pass_, shared_fc2());
  }
  void shared_in_backward() {
    if (!experts_.has_shared()) return;
    activation_backward(pass_, model_, stack_, shared_activation());
    column_backward(pass_, {shared_fc1()});
  }

  PassKernels& pass_;
  const Model& model_;
  const Stack& stack_;
  const ExpertShare& experts_;
  bool reruns_activation_ = false;
};

}  // namespace

void experts_forward(PassKernels& pass, const Model& model, const Stack& stack,
                     const ExpertShare& experts, ExpertExtent extent) {
  ExpertPass(pass, model, stack, experts).forward(extent);
}

void experts_backward(PassKernels& pass, const Model& model, const Split& split,
                      const ExpertShare& experts) {
  ExpertPass(pass, model, split.stack, experts).backward(split);
}

std::vector<SavedTensor> experts_saved(const Share& share, const ExpertShare& experts,
                                       const Split& split) {
  const std::int64_t e = share.element;
  const std::int64_t l = share.linear_element;
  const std::int64_t h = share.hidden;
  std::vector<SavedTensor> saved;
  // One tensor for the router, the permutation and the shared experts.
  if (!split.reruns(&RecomputeModules::norm)) {
    saved.push_back({"router.input", Bytes(experts.tokens * h * e)});
  }
  if (split.reruns(&RecomputeModules::mlp)) return saved;
  const bool keeps_activation = !split.reruns(&RecomputeModules::activation);
  saved.push_back({"router.probabilities", Bytes(experts.tokens * experts.experts * kFp32)});
  saved.push_back({"experts.fc1.input", Bytes(experts.gathered * h * l)});
  saved.push_back({"experts.activation.input", Bytes(experts.gathered * experts.fc1_width * e)});
  if (keeps_activation) {
    saved.push_back({"experts.fc2.input", Bytes(experts.gathered * experts.ffn * l)});
  }
  saved.push_back({"unpermute.input", Bytes(experts.copies * h * e)});
  if (!experts.has_shared()) return saved;
  saved.push_back({"shared_activation.input", Bytes(share.tokens * experts.shared_fc1_width * e)});
  if (keeps_activation) {
    saved.push_back({"shared_fc2.input", Bytes(share.tokens * experts.shared_ffn * l)});
  }
  if (experts.has_shared_gate) {
    saved.push_back({"shared.scale.input", Bytes(experts.tokens * h * e)});
  }
  return saved;
}

std::vector<SavedTensor> experts_retained(const Share& share, const ExpertShare& experts) {
  const std::int64_t e = share.linear_element;
  const std::int64_t h = share.hidden;
  const std::int64_t gathered = experts.gathered * e;
  std::vector<SavedTensor> retained;
  retained.push_back({"router.input", Bytes(experts.tokens * h * share.element)});
  retained.push_back({"router.gradient", Bytes(experts.tokens * experts.experts * share.element)});
  retained.push_back({"experts.fc1.input", Bytes(gathered * h)});
  retained.push_back({"experts.fc1.gradient", Bytes(gathered * experts.fc1_width)});
  retained.push_back({"experts.fc2.input", Bytes(gathered * experts.ffn)});
  retained.push_back({"experts.fc2.gradient", Bytes(gathered * h)});
  if (!experts.has_shared()) return retained;
  const std::int64_t tokens = share.tokens * e;
  retained.push_back({"shared_fc1.gradient", Bytes(tokens * experts.shared_fc1_width)});
  retained.push_back({"shared_fc2.input", Bytes(tokens * experts.shared_ffn)});
  retained.push_back({"shared_fc2.gradient", Bytes(tokens * h)});
  return retained;
}

}  // namespace foresail::models
