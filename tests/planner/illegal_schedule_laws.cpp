// Sequences, schedules and batches.
#include <algorithm>
#include <utility>

#include "foresail/planner/schedule.h"
#include "illegal_cases.h"

namespace foresail::planner::illegal {
namespace {

bool is_interleaved(const Case& c) {
  return c.layout.schedule == ScheduleKind::Interleaved;
}
bool is_written(const Case& c) {
  return c.layout.schedule == ScheduleKind::File;
}
bool has_own_chunks(const Case& c) {
  return c.layout.schedule == ScheduleKind::ZbV || is_dualpipe(c) || is_written(c);
}
int chunks_of_schedule(const Case& c) {
  return is_written(c) ? c.layout.written.chunks : 2;
}
std::int64_t microbatches(const Case& c) {
  return c.training.global_batch_size / (c.layout.microbatch_size * c.layout.dp);
}
/// For a schedule to be written: not the millions of passes_max.
int few(const Case& c) {
  return static_cast<int>(std::clamp<std::int64_t>(microbatches(c), 1, 64));
}
bool divides_batch(const Case& c) {
  return c.training.global_batch_size % (c.layout.microbatch_size * c.layout.dp) == 0;
}
bool has_microbatches(const Case& c) {
  return divides_batch(c) && microbatches(c) * c.layout.v * c.layout.pp <= 1'000'000;
}
int group(const Case& c) {
  return c.layout.group_size == 0 ? c.layout.pp : c.layout.group_size;
}
bool is_group_in_range(const Case& c) {
  return group(c) >= c.layout.pp && group(c) <= microbatches(c);
}

std::vector<Law> laws_of_sequence() {
  return {{"sequence_parallel_needs_tp",
           [](const Case& c) { return c.layout.sequence_parallel && c.layout.tp == 1; },
           [](const Case&) { return Terms{1}; },
           [](Case& c, Draw&) {
             c.layout.tp = 1;
             c.layout.sequence_parallel = true;
             c.devices = c.layout.world_size();
           }},
          {"sequence_by_tp_cp",
           [](const Case& c) {
             return c.layout.sequence_parallel &&
                    c.training.sequence_length % (c.layout.tp * c.layout.cp) != 0;
           },
           [](const Case& c) {
             return Terms{c.training.sequence_length, c.layout.tp, c.layout.cp,
                          c.training.sequence_length % (c.layout.tp * c.layout.cp)};
           },
           [](Case& c, Draw& draw) {
             c.layout.sequence_parallel = true;
             c.training.sequence_length += draw.part_of(c.layout.tp * c.layout.cp);
           }},
          {"sequence_by_2cp",
           [](const Case& c) {
             return c.layout.cp > 1 && c.training.sequence_length % (2 * c.layout.cp) != 0;
           },
           [](const Case& c) {
             return Terms{c.training.sequence_length, c.layout.cp,
                          c.training.sequence_length % (2 * c.layout.cp)};
           },
           [](Case& c, Draw& draw) {
             c.layout.cp = draw.of({3, 5});
             c.devices = c.layout.world_size();
           }}};
}

std::vector<Law> laws_of_zero_bubble() {
  return {{"schedule_needs_pp",
           [](const Case& c) { return c.layout.has_split_backward() && c.layout.pp == 1; },
           [](const Case&) { return Terms{1}; },
           [](Case& c, Draw& draw) {
             c.layout.schedule = draw.of({ScheduleKind::ZbH1, ScheduleKind::ZbH2});
             c.layout.v = 1;
             c.layout.pp = 1;
             c.devices = c.layout.world_size();
           }},
          {"chunks_of_schedule",
           [](const Case& c) { return has_own_chunks(c) && c.layout.v != chunks_of_schedule(c); },
           [](const Case& c) {
             return Terms{chunks_of_schedule(c), c.layout.v};
           },
           [](Case& c, Draw& draw) {
             c.layout.schedule = draw.of({ScheduleKind::ZbV, ScheduleKind::DualPipe});
             c.layout.v = draw.of({1, 3, 4});
           }},
          {"dualpipe_even_pp", [](const Case& c) { return is_dualpipe(c) && c.layout.pp % 2 != 0; },
           [](const Case& c) { return Terms{c.layout.pp}; },
           [](Case& c, Draw& draw) {
             c.layout.schedule = ScheduleKind::DualPipe;
             c.layout.v = 2;
             c.layout.pp = draw.of({3, 5});
             c.devices = c.layout.world_size();
           }},
          {"mirrored_zero_stage",
           [](const Case& c) { return is_dualpipe(c) && c.layout.zero_stage == 3; },
           [](const Case&) {
             return Terms{2, 3};
           },
           [](Case& c, Draw&) {
             c.layout.schedule = ScheduleKind::DualPipe;
             c.layout.v = 2;
             c.layout.zero_stage = 3;
           }}};
}

std::vector<Law> laws_of_chunks() {
  return {{"stages_of_schedule",
           [](const Case& c) {
             return is_written(c) && std::cmp_not_equal(c.layout.written.order.size(), c.layout.pp);
           },
           [](const Case& c) {
             return Terms{static_cast<std::int64_t>(c.layout.written.order.size()), c.layout.pp};
           },
           [](Case& c, Draw& draw) {
             const Schedule made = make_schedule(
                 ScheduleKind::ZbH1,
                 {.stages = c.layout.pp + draw.between(1, 3), .microbatches = few(c)});
             c.layout.schedule = ScheduleKind::File;
             c.layout.v = 1;
             c.layout.written = {made.stage_map, made.chunks, made.microbatches, made.order};
           }},
          {"v_needs_interleaved",
           [](const Case& c) { return c.layout.v > 1 && !is_interleaved(c) && !has_own_chunks(c); },
           [](const Case& c) { return Terms{c.layout.v}; },
           [](Case& c, Draw& draw) {
             c.layout.v = 2;
             c.layout.schedule = draw.of(
                 {ScheduleKind::Gpipe, ScheduleKind::OneForwardOneBackward, ScheduleKind::ZbH2});
           }},
          {"group_size_needs_interleaved",
           [](const Case& c) { return c.layout.group_size > 0 && !is_interleaved(c); },
           [](const Case& c) { return Terms{c.layout.group_size}; },
           [](Case& c, Draw& draw) {
             c.layout.v = 1;
             c.layout.schedule = ScheduleKind::Gpipe;
             c.layout.group_size = draw.between(1, 9);
           }}};
}

std::vector<Law> laws_of_interleaving() {
  return {
      {"interleaved_needs_v", [](const Case& c) { return is_interleaved(c) && c.layout.v == 1; },
       [](const Case&) { return Terms{1}; },
       [](Case& c, Draw&) {
         c.layout.v = 1;
         c.layout.schedule = ScheduleKind::Interleaved;
       }},
      {"v_needs_pp", [](const Case& c) { return c.layout.v > 1 && c.layout.pp == 1; },
       [](const Case& c) {
         return Terms{c.layout.v, 1};
       },
       [](Case& c, Draw& draw) {
         c.layout.v = draw.of({2, 4});
         c.layout.schedule = ScheduleKind::Interleaved;
         c.layout.pp = 1;
         c.devices = c.layout.world_size();
       }},
      {"interleaved_needs_overlap",
       [](const Case& c) { return is_interleaved(c) && c.layout.pp == 2 && !c.layout.overlap.pp; },
       [](const Case&) { return Terms{2}; },
       [](Case& c, Draw&) {
         c.layout.v = 2;
         c.layout.schedule = ScheduleKind::Interleaved;
         c.layout.pp = 2;
         c.layout.overlap.pp = false;
         c.devices = c.layout.world_size();
       }}};
}

/// Aligned launches of drawn messages, which keep all laws but those that the caller breaks.
void align(Case& c, DataMessages messages) {
  c.layout.overlap.dp = true;
  c.layout.overlap.aligned = messages;
}

std::vector<Law> laws_of_alignment() {
  const auto aligned = [](const Case& c) { return c.layout.overlap.aligned; };
  return {{"aligned_needs_interleaved",
           [=](const Case& c) { return aligned(c).any() && !is_interleaved(c); },
           [](const Case&) { return Terms{}; },
           [](Case& c, Draw&) {
             align(c, {true, false});
             c.layout.v = 1;
             c.layout.schedule = ScheduleKind::Gpipe;
           }},
          {"aligned_needs_overlap",
           [=](const Case& c) {
             const DataMessages hidden = c.layout.overlap.dp;
             return (aligned(c).gradients && !hidden.gradients) ||
                    (aligned(c).parameters && !hidden.parameters);
           },
           [](const Case&) { return Terms{}; },
           [](Case& c, Draw& draw) {
             align(c, true);
             c.layout.overlap.dp = DataMessages(draw.coin(), false);
           }},
          {"aligned_zero_stage",
           [=](const Case& c) { return aligned(c).any() && c.layout.zero_stage == 3; },
           [](const Case&) {
             return Terms{2, 3};
           },
           [](Case& c, Draw&) {
             align(c, true);
             c.layout.zero_stage = 3;
           }},
          {"aligned_gathers_need_zero",
           [=](const Case& c) {
             return aligned(c) == DataMessages(false, true) && c.layout.zero_stage == 0;
           },
           [](const Case&) { return Terms{0}; },
           [](Case& c, Draw&) {
             align(c, {false, true});
             c.layout.zero_stage = 0;
           }}};
}

std::vector<Law> laws_of_batch() {
  return {{"batch_by_replicas", [](const Case& c) { return !divides_batch(c); },
           [](const Case& c) {
             return Terms{c.training.global_batch_size, c.layout.microbatch_size, c.layout.dp};
           },
           [](Case& c, Draw& draw) { c.training.global_batch_size += draw.between(1, 1); }},
          {"passes_max", [](const Case& c) { return divides_batch(c) && !has_microbatches(c); },
           [](const Case& c) {
             return Terms{c.training.global_batch_size, c.layout.v, c.layout.pp,
                          microbatches(c) * c.layout.v * c.layout.pp, 1'000'000};
           },
           [](Case& c, Draw& draw) {
             c.training.global_batch_size *= 1'000'000 + draw.between(1, 999);
           }}};
}

std::vector<Law> laws_of_groups() {
  return {{"group_size_range",
           [](const Case& c) {
             return has_microbatches(c) && is_interleaved(c) && !is_group_in_range(c);
           },
           [](const Case& c) {
             return Terms{group(c), c.layout.pp, microbatches(c)};
           },
           [](Case& c, Draw& draw) {
             c.layout.v = 2;
             c.layout.schedule = ScheduleKind::Interleaved;
             c.layout.group_size =
                 draw.coin() ? draw.part_of(c.layout.pp) : static_cast<int>(microbatches(c)) + 1;
           }},
          {"microbatches_by_group",
           [](const Case& c) {
             const std::int64_t left = microbatches(c) % group(c);
             return has_microbatches(c) && is_interleaved(c) && is_group_in_range(c) && left != 0 &&
                    left < c.layout.pp;
           },
           [](const Case& c) {
             return Terms{microbatches(c), group(c), microbatches(c) % group(c), c.layout.pp};
           },
           [](Case& c, Draw&) {
             c.layout.v = 2;
             c.layout.schedule = ScheduleKind::Interleaved;
             c.layout.group_size = static_cast<int>(microbatches(c)) - 1;
           }}};
}

std::vector<Law> laws_of_microbatches() {
  return {{"dualpipe_even_microbatches",
           [](const Case& c) {
             return has_microbatches(c) && is_dualpipe(c) && microbatches(c) % 2 != 0;
           },
           [](const Case& c) { return Terms{microbatches(c)}; },
           [](Case& c, Draw& draw) {
             c.layout.schedule = ScheduleKind::DualPipe;
             c.layout.v = 2;
             c.training.global_batch_size =
                 (2 * draw.between(6, 20) + 1) * c.layout.dp * c.layout.microbatch_size;
           }},
          {"dualpipe_microbatches_min",
           [](const Case& c) {
             return has_microbatches(c) && is_dualpipe(c) &&
                    microbatches(c) < std::int64_t{2} * c.layout.pp;
           },
           [](const Case& c) {
             return Terms{microbatches(c), c.layout.pp, 2 * c.layout.pp};
           },
           [](Case& c, Draw& draw) {
             c.layout.schedule = ScheduleKind::DualPipe;
             c.layout.v = 2;
             c.training.global_batch_size = 2 * std::max(1, draw.part_of(c.layout.pp)) *
                                            c.layout.dp * c.layout.microbatch_size;
           }},
          {"microbatches_of_schedule",
           [](const Case& c) {
             return has_microbatches(c) && is_written(c) &&
                    microbatches(c) != c.layout.written.microbatches;
           },
           [](const Case& c) {
             return Terms{c.layout.written.microbatches, microbatches(c)};
           },
           [](Case& c, Draw& draw) {
             const Schedule made = make_schedule(
                 ScheduleKind::ZbH1,
                 {.stages = c.layout.pp, .microbatches = few(c) + draw.between(1, 5)});
             c.layout.schedule = ScheduleKind::File;
             c.layout.v = 1;
             c.layout.written = {made.stage_map, made.chunks, made.microbatches, made.order};
           }}};
}

}  // namespace

std::vector<Law> laws_of_the_schedule() {
  std::vector<Law> all;
  for (auto* make : {laws_of_sequence, laws_of_zero_bubble, laws_of_chunks, laws_of_interleaving,
                     laws_of_alignment, laws_of_batch, laws_of_groups, laws_of_microbatches}) {
    for (Law& law : make()) all.push_back(std::move(law));
  }
  return all;
}

}  // namespace foresail::planner::illegal
