#include "attention_softmax.h"

#include <limits>

namespace foresail::runtime {
namespace {

/// Tensors of one block that are kept.
std::size_t kept_count(const CoreAttention& layer) {
  return layer.scope().model->dropout ? 3 : 1;
}

/// The kernels of one block, of a forward or a backward pass.
class Kernels {
 public:
  Kernels(const CoreAttention& layer, OpContext& op, const SoftmaxBlock& block,
          const at::Tensor& values)
      : layer_(layer),
        op_(op),
        block_(block),
        is_fused_(layer.scope().split->stack.fused_kernels),
        has_dropout_(layer.scope().model->dropout),
        format_(values),
        values_(values) {}

  /// `normalise` makes the softmax of fp32 scores, which it may overwrite.
  template <class Normalise>
  Probabilities forward(const Normalise& normalise) {
    Probabilities made;
    const auto scale = [&] { edit([&](at::Tensor& wide) { wide.mul_(layer_.scale()); }); };
    const auto hide = [&] {
      edit([&](at::Tensor& wide) {
        wide.masked_fill_(is_masked(), -std::numeric_limits<float>::infinity());
      });
    };
    const auto finish = [&] {
      made.softmax = rounded(normalise(widened(values_)), format_);
      made.weights = made.softmax;
    };
    const auto take_away = [&] {
      made.dropped = layer_.dropout(block_.index).draw().view_as(made.softmax);
      made.weights = without_dropped(made.softmax, made.dropped);
    };
    if (is_fused_) {
      op_.compute(name("softmax"), [&] {
        scale();
        hide();
        finish();
        if (has_dropout_) take_away();
      });
      return made;
    }
    op_.compute(name("attention.scale"), scale);
    op_.compute(name("attention.mask"), hide);
    op_.compute(name("softmax"), finish);
    if (has_dropout_) op_.compute(name("attention.dropout"), take_away);
    return made;
  }

  /// `through_softmax`: gradients of fp32 scores from those of probabilities.
  template <class ThroughSoftmax>
  at::Tensor backward(const at::Tensor& dropped, const ThroughSoftmax& through_softmax) {
    const auto take_away = [&] { edit([&](at::Tensor& wide) { drop(wide, dropped); }); };
    const auto pass = [&] { edit([&](at::Tensor& wide) { wide = through_softmax(wide); }); };
    const auto hide = [&] { edit([&](at::Tensor& wide) { wide.masked_fill_(is_masked(), 0); }); };
    const auto scale = [&] { edit([&](at::Tensor& wide) { wide.mul_(layer_.scale()); }); };
    if (is_fused_) {
      op_.compute(name("softmax.backward"), [&] {
        if (has_dropout_) take_away();
        pass();
        scale();
        values_ = rounded(values_, format_);
      });
      return values_;
    }
    if (has_dropout_) op_.compute(name("attention.dropout.backward"), take_away);
    op_.compute(name("softmax.backward"), pass);
    op_.compute(name("attention.mask.backward"), hide);
    op_.compute(name("attention.scale.backward"), scale);
    return values_;
  }

 private:
  std::string name(const std::string& kernel) const { return kernel + block_.suffix; }
  const at::Tensor& is_masked() const {
    return layer_.scope().tables.is_masked.at(static_cast<std::size_t>(block_.index));
  }

  /// Does `work` on the values in fp32. What one kernel hands to another is rounded.
  template <class Work>
  void edit(const Work& work) {
    at::Tensor wide = widened(values_);
    work(wide);
    values_ = is_fused_ ? wide : rounded(wide, format_);
  }

  const CoreAttention& layer_;
  OpContext& op_;
  const SoftmaxBlock& block_;
  bool is_fused_, has_dropout_;
  const at::Tensor& format_;
  at::Tensor values_;
};

}  // namespace

void append(variable_list& saved, const Probabilities& probabilities) {
  saved.push_back(probabilities.softmax);
  if (!probabilities.dropped.defined()) return;
  saved.push_back(probabilities.dropped);
  saved.push_back(probabilities.weights);
}

Probabilities probabilities_in(const CoreAttention& layer, const variable_list& saved,
                               std::size_t first, std::size_t index) {
  const std::size_t at = first + index * kept_count(layer);
  if (!layer.scope().model->dropout) return {saved.at(at), {}, saved.at(at)};
  return {saved.at(at), saved.at(at + 1), saved.at(at + 2)};
}

Probabilities softmax_of(const CoreAttention& layer, OpContext& op, const SoftmaxBlock& block,
                         const at::Tensor& scores) {
  return Kernels(layer, op, block, scores).forward([](const at::Tensor& wide) {
    return at::softmax(wide, -1);
  });
}

Exponentials exponentials_of(const CoreAttention& layer, OpContext& op, const SoftmaxBlock& block,
                             const at::Tensor& scores) {
  Exponentials made;
  made.parts = Kernels(layer, op, block, scores).forward([&](at::Tensor wide) {
    made.maximum = wide.amax(-1, true);
    // A row may see nothing of a block: its maximum is -infinity, and its exponentials are 0.
    const at::Tensor finite = made.maximum.clamp_min(std::numeric_limits<float>::lowest());
    wide.sub_(finite).exp_();
    made.sum = wide.sum(-1, true);
    return wide;
  });
  return made;
}

at::Tensor scores_gradient(const CoreAttention& layer, OpContext& op, const SoftmaxBlock& block,
                           const at::Tensor& weights_gradient, const Probabilities& probabilities,
                           const at::Tensor& row_sums) {
  return Kernels(layer, op, block, weights_gradient)
      .backward(probabilities.dropped, [&](at::Tensor wide) {
        if (row_sums.defined()) return wide.sub_(row_sums).mul_(probabilities.softmax);
        return at::_softmax_backward_data(wide, widened(probabilities.softmax), -1, at::kFloat);
      });
}

}  // namespace foresail::runtime
