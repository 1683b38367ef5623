#include "cross_entropy.h"

#include <algorithm>

namespace foresail::runtime {
namespace {

/// Of a padded column. Finite, so that a rank with nothing but padding stays free of NaN.
constexpr double kImpossible = -1e30;

/// Overwrites the columns of this rank that pad the vocabulary.
void mask_padding(const StageScope& scope, const at::Tensor& logits) {
  const std::int64_t columns = logits.size(1);
  const std::int64_t first = scope.tp_rank * columns;
  const std::int64_t real = std::clamp<std::int64_t>(scope.model->vocab - first, 0, columns);
  if (real < columns) logits.narrow(1, real, columns - real).fill_(kImpossible);
}

/// What one rank's columns say about each token, [T] but for the exponentials [T, columns].
struct LocalTerms {
  at::Tensor exponentials;  ///< exp(logit - maximum over all ranks)
  at::Tensor sum;           ///< of the exponentials
  at::Tensor target;        ///< logit of the target less the maximum, 0 if another rank has it
  at::Tensor column;        ///< of the target, -1 if another rank has it
};

LocalTerms local_terms(const StageScope& scope, const at::Tensor& logits, const at::Tensor& maximum,
                       const at::Tensor& targets) {
  const std::int64_t columns = logits.size(1);
  LocalTerms terms;
  const at::Tensor shifted = targets - scope.tp_rank * columns;
  const at::Tensor is_other = shifted.lt(0).logical_or_(shifted.ge(columns));
  terms.column = shifted.masked_fill(is_other, -1);
  logits.sub_(maximum.unsqueeze(1));
  terms.target =
      logits.gather(1, terms.column.clamp_min(0).unsqueeze(1)).squeeze(1).masked_fill_(is_other, 0);
  terms.exponentials = logits.exp_();
  terms.sum = terms.exponentials.sum(1);
  return terms;
}

/// Probabilities times `weight`, of exponentials and the reciprocals of their sums. Operator by
/// operator in two passes over the logits, one behind the other; fused in one.
at::Tensor weighed(const StageScope& scope, const at::Tensor& exponentials,
                   const at::Tensor& reciprocals, const at::Tensor& weight) {
  if (scope.split->stack.fused_cross_entropy) {
    return exponentials * (reciprocals * weight).unsqueeze(1);
  }
  return (exponentials * reciprocals.unsqueeze(1)).mul_(weight);
}

struct CrossEntropyFunction : torch::autograd::Function<CrossEntropyFunction> {
  static at::Tensor forward(AutogradContext* graph, at::Tensor input, at::Tensor targets,
                            const CrossEntropy* layer) {
    const StageScope& scope = layer->scope();
    OpContext& op = scope.context();
    const at::Tensor logits = widened(input.detach());
    at::Tensor maximum;
    if (op.tp_size() > 1) {
      // The maximum must be known before the kernel that the Program lists next.
      mask_padding(scope, logits);
      maximum = logits.amax(1);
      op.all_reduce("tp.max", maximum, Reduction::Max);
    }
    LocalTerms terms = op.compute("cross_entropy", [&] {
      if (op.tp_size() == 1) {
        mask_padding(scope, logits);
        maximum = logits.amax(1);
      }
      return local_terms(scope, logits, maximum, targets);
    });
    if (op.tp_size() > 1) {
      op.all_reduce("tp.target", terms.target, Reduction::Sum);
      op.all_reduce("tp.sum", terms.sum, Reduction::Sum);
    }
    graph->save_for_backward({terms.exponentials, terms.sum.reciprocal(), terms.column});
    graph->saved_data["format"] = static_cast<std::int64_t>(input.scalar_type());
    ModulePointer<CrossEntropy>::save(graph, layer);
    return (terms.sum.to(at::kDouble).log_() - terms.target).mean();
  }

  static variable_list backward(AutogradContext* graph, variable_list grads) {
    const CrossEntropy& layer = ModulePointer<CrossEntropy>::load(graph);
    const variable_list saved = graph->get_saved_variables();
    const at::Tensor grad = layer.scope().context().compute("cross_entropy.backward", [&] {
      const at::Tensor weight = grads[0] / static_cast<double>(saved[0].size(0));
      at::Tensor probabilities = weighed(layer.scope(), saved[0], saved[1], weight);
      const at::Tensor index = saved[2].clamp_min(0).unsqueeze(1);
      const at::Tensor own = saved[2].ge(0).to(at::kFloat).mul_(weight.neg()).unsqueeze(1);
      probabilities.scatter_add_(1, index, own);
      return probabilities.to(static_cast<at::ScalarType>(graph->saved_data["format"].toInt()));
    });
    return {grad, at::Tensor(), at::Tensor()};
  }
};

}  // namespace

at::Tensor CrossEntropy::forward(const at::Tensor& logits, const at::Tensor& targets) {
  return CrossEntropyFunction::apply(logits, targets, static_cast<const CrossEntropy*>(this));
}

}  // namespace foresail::runtime
