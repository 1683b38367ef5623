/// \file
/// Any network for the tensors of any device.
#pragma once

#include <memory>

#include "foresail/runtime/communicator.h"

namespace foresail::testing {

/// `inner` moves host memory; what stands in a device's is copied there and back.
std::unique_ptr<runtime::Endpoint> make_staged_endpoint(std::unique_ptr<runtime::Endpoint> inner);

}  // namespace foresail::testing
