/// \file
/// Memory asked for before it is needed: a step of thousands of nodes touches more of it between
/// two events of one node than caches hold, so that nearly every event would wait for it.
#pragma once

namespace foresail::sim {

/// Changes nothing but when `address` is there. Any address may be given.
inline void prefetch(const void* address) {
  __builtin_prefetch(address);
}

}  // namespace foresail::sim
