/// \file
/// Text forms of quantities: "400 Gb/s", "80 GiB", "5 us", "312 TFLOP/s". A unit is demanded.
#pragma once

#include <string>
#include <string_view>

#include "foresail/base/units.h"

namespace foresail {

/// Each throws Error{InvalidInput} that names the text, what is wrong and an example:
/// `"400" has no unit (for example "400 Gb/s")`. Blank between number and unit is optional.
/// Results that are not whole in the type's own unit are rounded to the nearest.
Duration parse_duration(std::string_view text);    // ps ns us ms s min h d
Bytes parse_bytes(std::string_view text);          // B kB MB GB TB KiB MiB GiB TiB
Bandwidth parse_bandwidth(std::string_view text);  // b/s kb/s Mb/s Gb/s Tb/s, B/s ... GB/s, TB/s
FlopRate parse_flop_rate(std::string_view text);   // FLOP/s GFLOP/s TFLOP/s PFLOP/s

/// For people: three significant figures and a fitting unit ("6.34 s", "46.9 GiB", "200 Gb/s").
std::string to_text(Duration value);
std::string to_text(Bytes value);
std::string to_text(Bandwidth value);
std::string to_text(FlopRate value);

}  // namespace foresail
