/// \file
/// The legal interleaved shapes of the identities: p in 2..8, v in 2..4, m in p..3p, every legal G.
#pragma once

#include <vector>

#include "foresail/planner/schedule.h"

namespace foresail::planner {

inline std::vector<ScheduleShape> interleaved_shapes() {
  std::vector<ScheduleShape> shapes;
  for (int p = 2; p <= 8; ++p) {
    for (int v = 2; v <= 4; ++v) {
      for (int m = p; m <= 3 * p; ++m) {
        for (int group = p; group <= m; ++group) {
          if (m % group == 0 || m % group >= p) shapes.push_back({p, v, m, group});
        }
      }
    }
  }
  return shapes;
}

}  // namespace foresail::planner
