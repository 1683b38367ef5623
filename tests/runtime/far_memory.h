/// \file
/// torch's backend of FarDevice, which is there in every program that links it.
#pragma once

#include <cstdint>

namespace foresail::testing {

/// Copies of a far tensor's values into host memory so far.
std::int64_t far_copies_to_host();

}  // namespace foresail::testing
