/// \file
/// The form of a Document that digests are taken of.
#pragma once

#include "foresail/base/document.h"

namespace foresail::planner {

/// The same tree with every quantity as a plain number: bytes, bits per second, picoseconds, FLOP
/// per second. So "1 KiB" and "1024 B" have one digest. Texts under the keys `name`, `provenance`
/// and `data` are never quantities.
Document canonical(const Document& document);

}  // namespace foresail::planner
