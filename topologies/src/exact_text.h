/// \file
/// Quantities as text that reads back equal: "200 Gb/s", "80 GiB", "450 ns", "989.4 TFLOP/s".
#pragma once

#include <string>

#include "foresail/base/units.h"

namespace foresail::topologies {

/// In the largest unit that needs no fraction.
std::string exact_text(Duration value);
std::string exact_text(Bytes value);
std::string exact_text(Bandwidth value);
/// In TFLOP/s with as many digits as needed (in FLOP/s where that is not exact).
std::string exact_text(FlopRate value);

}  // namespace foresail::topologies
