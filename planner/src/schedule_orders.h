/// \file
/// The orders of the zero-bubble family, one stage at a time.
#pragma once

#include "foresail/planner/schedule.h"

namespace foresail::planner {

/// ZB-H1 and ZB-H2 (Qi 2024, "Zero Bubble Pipeline Parallelism", figures 2 and 3; facts 2.3). Both
/// are 1F1B with the weight half of stage r's backward passes delayed: by r microbatches with
/// p - r - 1 forwards ahead (H1), by 2 r with 2 (p - r - 1) ahead (H2). So every stage keeps at
/// most p (H1) or 2 p - 1 (H2) microbatches between their forward and their weight half.
PassOrder zb_h1_order(const ScheduleShape& shape, int stage);
PassOrder zb_h2_order(const ScheduleShape& shape, int stage);

/// ZB-V (Qi 2024, "Pipeline Parallelism with Controllable Memory"): two chunks per stage in a V.
/// The rules of torch.distributed.pipelining: made for at least 2 p - 1 microbatches; of fewer, the
/// passes of those that do not exist are left out.
PassOrder zb_v_order(const ScheduleShape& shape, int stage);

/// DualPipe (DeepSeek-V3 2024, section 3.2.1; the eight steps of deepseek-ai/DualPipe): half of the
/// microbatches enters at each end, F&B joined where two directions meet.
PassOrder dualpipe_order(const ScheduleShape& shape, int stage);

}  // namespace foresail::planner
