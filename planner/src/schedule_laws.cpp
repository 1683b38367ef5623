#include "schedule_laws.h"

#include <fmt/format.h>

#include <string>
#include <string_view>
#include <vector>

namespace foresail::planner {
namespace {

bool is_mirrored(const Layout& layout) {
  return layout.schedule == ScheduleKind::DualPipe ||
         (layout.schedule == ScheduleKind::File &&
          layout.written.stage_map == program::StageMap::Mirrored);
}

int chunks_of(const Layout& layout) {
  return layout.schedule == ScheduleKind::File ? layout.written.chunks : 2;
}

}  // namespace

bool has_own_chunks(const Layout& layout) {
  return layout.schedule == ScheduleKind::ZbV || layout.schedule == ScheduleKind::DualPipe ||
         layout.schedule == ScheduleKind::File;
}

std::vector<BrokenLaw> check_zero_bubble(const Layout& layout) {
  std::vector<BrokenLaw> broken;
  if (!layout.has_split_backward()) return broken;
  const std::string_view schedule = to_string(layout.schedule);
  if (layout.pp == 1) {
    broken.push_back(
        {"schedule_needs_pp", fmt::format("schedule {} needs pp > 1, but pp is 1", schedule)});
  }
  if (has_own_chunks(layout) && layout.v != chunks_of(layout)) {
    broken.push_back(
        {"chunks_of_schedule", fmt::format("schedule {} has {} chunks per rank, but v is {}",
                                           schedule, chunks_of(layout), layout.v)});
  }
  if (layout.schedule == ScheduleKind::DualPipe && layout.pp % 2 != 0) {
    broken.push_back({"dualpipe_even_pp",
                      fmt::format("pp {} % 2 = 1, must be 0 with schedule dualpipe", layout.pp)});
  }
  if (is_mirrored(layout) && layout.zero_stage == 3) {
    broken.push_back({"mirrored_zero_stage",
                      fmt::format("schedule {} sums the gradients of two whole copies, so "
                                  "zero_stage must be at most 2, but is 3",
                                  schedule)});
  }
  const auto stages = static_cast<int>(layout.written.order.size());
  if (layout.schedule == ScheduleKind::File && stages != layout.pp) {
    broken.push_back(
        {"stages_of_schedule",
         fmt::format("the written schedule has {} stages, but pp is {}", stages, layout.pp)});
  }
  return broken;
}

std::vector<BrokenLaw> check_alignment(const Layout& layout) {
  std::vector<BrokenLaw> broken;
  const DataMessages aligned = layout.overlap.aligned;
  const DataMessages hidden = layout.overlap.dp;
  if (!aligned.any()) return broken;
  if (layout.schedule != ScheduleKind::Interleaved) {
    broken.push_back({"aligned_needs_interleaved",
                      fmt::format("overlap.aligned {} needs schedule interleaved, but schedule is "
                                  "{}",
                                  to_text(aligned), to_string(layout.schedule))});
  }
  if ((aligned.gradients && !hidden.gradients) || (aligned.parameters && !hidden.parameters)) {
    broken.push_back({"aligned_needs_overlap",
                      fmt::format("overlap.aligned {} needs the same of overlap.dp, but that is {}",
                                  to_text(aligned), to_text(hidden))});
  }
  if (layout.zero_stage == 3) {
    broken.push_back({"aligned_zero_stage",
                      fmt::format("overlap.aligned {} needs zero_stage at most 2, but it is 3: its "
                                  "messages come with every pass",
                                  to_text(aligned))});
  }
  if (aligned == DataMessages(false, true) && layout.zero_stage == 0) {
    broken.push_back({"aligned_gathers_need_zero",
                      "overlap.aligned parameters needs zero_stage 1 or 2, but it is 0: there are "
                      "no gathers"});
  }
  return broken;
}

std::vector<BrokenLaw> check_microbatches(const Layout& layout, std::int64_t microbatches) {
  std::vector<BrokenLaw> broken;
  if (layout.schedule == ScheduleKind::DualPipe) {
    if (microbatches % 2 != 0) {
      broken.push_back({"dualpipe_even_microbatches",
                        fmt::format("{} microbatches % 2 = 1, must be 0 with schedule dualpipe: "
                                    "half of them enters at each end",
                                    microbatches)});
    }
    if (microbatches < std::int64_t{2} * layout.pp) {
      broken.push_back({"dualpipe_microbatches_min",
                        fmt::format("{} microbatches, must be at least 2 * pp {} = {} with "
                                    "schedule dualpipe",
                                    microbatches, layout.pp, 2 * layout.pp)});
    }
  }
  if (layout.schedule == ScheduleKind::File && microbatches != layout.written.microbatches) {
    broken.push_back(
        {"microbatches_of_schedule",
         fmt::format("the written schedule has {} microbatches, but global_batch_size / "
                     "(microbatch_size * dp) is {}",
                     layout.written.microbatches, microbatches)});
  }
  return broken;
}

}  // namespace foresail::planner
