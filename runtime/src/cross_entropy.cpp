#include "cross_entropy.h"

#include <algorithm>

namespace foresail::runtime {
namespace {

/// Of a padded column. Finite, so that a rank with nothing but padding stays free of NaN.
constexpr double kImpossible = -1e30;

/// What one rank's columns say about each token.
struct LocalTerms {
  at::Tensor exponentials;  ///< exp(logit - own maximum), [T, columns]
  at::Tensor maximum;       ///< [T]
  at::Tensor sum;           ///< of the exponentials, [T]
  at::Tensor target;        ///< logit of the target, 0 if another rank has it, [T]
  at::Tensor column;        ///< of the target, -1 if another rank has it, [T]
};

LocalTerms local_terms(const StageScope& scope, at::Tensor logits, const at::Tensor& targets) {
  const std::int64_t columns = logits.size(1);
  const std::int64_t first = scope.tp_rank * columns;
  const std::int64_t real = std::clamp<std::int64_t>(scope.model->vocab - first, 0, columns);
  if (real < columns) logits.narrow(1, real, columns - real).fill_(kImpossible);
  LocalTerms terms;
  terms.maximum = logits.amax(1);
  const at::Tensor shifted = targets - first;
  const at::Tensor is_own = shifted.ge(0).logical_and_(shifted.lt(columns));
  terms.column = shifted.masked_fill(is_own.logical_not(), -1);
  terms.target = logits.gather(1, terms.column.clamp_min(0).unsqueeze(1))
                     .squeeze(1)
                     .masked_fill_(is_own.logical_not(), 0);
  terms.exponentials = logits.sub_(terms.maximum.unsqueeze(1)).exp_();
  terms.sum = terms.exponentials.sum(1);
  return terms;
}

struct CrossEntropyFunction : torch::autograd::Function<CrossEntropyFunction> {
  static at::Tensor forward(AutogradContext* graph, at::Tensor logits, at::Tensor targets,
                            const CrossEntropy* layer) {
    const StageScope& scope = layer->scope();
    OpContext& op = scope.context();
    LocalTerms terms =
        op.compute("cross_entropy", [&] { return local_terms(scope, logits.detach(), targets); });
    at::Tensor maximum = terms.maximum;
    at::Tensor scale = at::ones_like(maximum);
    if (op.tp_size() > 1) {
      maximum = terms.maximum.clone();
      op.all_reduce("tp.max", maximum, Reduction::Max);
      op.all_reduce("tp.target", terms.target, Reduction::Sum);
      scale = (terms.maximum - maximum).exp_();
      terms.sum.mul_(scale);
      op.all_reduce("tp.sum", terms.sum, Reduction::Sum);
    }
    graph->save_for_backward({terms.exponentials, scale.div_(terms.sum), terms.column});
    ModulePointer<CrossEntropy>::save(graph, layer);
    const at::Tensor loss = terms.sum.to(at::kDouble).log_() + maximum - terms.target;
    return loss.mean();
  }

  static variable_list backward(AutogradContext* graph, variable_list grads) {
    const CrossEntropy& layer = ModulePointer<CrossEntropy>::load(graph);
    const variable_list saved = graph->get_saved_variables();
    const at::Tensor grad = layer.scope().context().compute("cross_entropy.backward", [&] {
      const double weight = grads[0].item<double>() / static_cast<double>(saved[0].size(0));
      at::Tensor probabilities = saved[0] * (saved[1] * weight).unsqueeze(1);
      const at::Tensor index = saved[2].clamp_min(0).unsqueeze(1);
      const at::Tensor own = saved[2].ge(0).to(at::kFloat).mul_(-weight).unsqueeze(1);
      return probabilities.scatter_add_(1, index, own);
    });
    return {grad, at::Tensor(), at::Tensor()};
  }
};

}  // namespace

at::Tensor CrossEntropy::forward(const at::Tensor& logits, const at::Tensor& targets) {
  return CrossEntropyFunction::apply(logits, targets, static_cast<const CrossEntropy*>(this));
}

}  // namespace foresail::runtime
