/// \file
/// What a calibration has to hold.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>

#include "foresail/program/profile.h"
#include "foresail/program/program.h"

namespace foresail::testing {

/// Every kernel of the Program that is no collective was measured.
inline void expect_every_kernel(const program::Program& program, const program::Profile& profile) {
  for (const program::KernelList& list : program.kernel_lists) {
    for (const Kernel& kernel : list.kernels) {
      if (kernel.kind == KernelKind::Collective) continue;
      Kernel wanted = kernel;
      wanted.name.clear();
      wanted.after.clear();
      const bool is_covered = std::ranges::any_of(profile.kernels, [&](const auto& timing) {
        return timing.kernel == wanted && timing.time > Duration(0);
      });
      EXPECT_TRUE(is_covered) << list.name << ": " << kernel.name;
    }
  }
}

}  // namespace foresail::testing
