/// \file
/// The adapter to libtorch: the one name of torch that public headers of the runtime use. Whoever
/// looks inside a Tensor includes libtorch's own headers.
#pragma once

namespace at {
class Tensor;
}

namespace foresail::runtime {

using Tensor = at::Tensor;

}  // namespace foresail::runtime
