#include "activation.h"

namespace foresail::models {

void activation_forward(PassKernels& pass, const Model& model, const Stack& stack,
                        const ActivationShape& shape) {
  const std::int64_t elements = shape.rows * shape.ffn;
  const std::int64_t e = pass.share().element;
  const std::string& prefix = shape.prefix;
  const bool is_gated = model.activation == Activation::SwiGlu;
  if (!stack.fused_kernels && model.biases) {
    pass.elementwise(prefix + "fc1.bias", shape.rows * shape.fc1_width * 2 * e);
  }
  if (stack.fused_kernels) {
    pass.elementwise(prefix + "activation", elements * (is_gated ? 3 : 2) * e);
    return;
  }
  pass.elementwise(prefix + "activation", elements * 2 * e);
  if (is_gated) pass.elementwise(prefix + "gate", elements * 3 * e);
}

void activation_backward(PassKernels& pass, const Model& model, const Stack& stack,
                         const ActivationShape& shape) {
  const std::int64_t elements = shape.rows * shape.ffn;
  const std::int64_t e = pass.share().element;
  const std::string& prefix = shape.prefix;
  const bool is_gated = model.activation == Activation::SwiGlu;
  if (stack.fused_kernels) {
    pass.elementwise(prefix + "activation.backward", elements * (is_gated ? 5 : 3) * e);
    return;
  }
  if (is_gated) pass.elementwise(prefix + "gate.backward", elements * 5 * e);
  pass.elementwise(prefix + "activation.backward", elements * 3 * e);
  if (model.biases) {
    pass.elementwise(prefix + "fc1.bias.backward", shape.rows * shape.fc1_width * e);
  }
}

}  // namespace foresail::models
