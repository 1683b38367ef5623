#include "foresail/planner/layout.h"

#include <cstdint>
#include <string>
#include <string_view>

#include "foresail/base/error.h"
#include "foresail/planner/schedule.h"

namespace foresail::planner {
namespace {

constexpr std::int64_t kDegreeMax = 1 << 20;

int degree(const Yaml& node, std::string_view key) {
  const auto value = node.find(key);
  return value ? static_cast<int>(value->as_integer(1, kDegreeMax)) : 1;
}

bool flag(const Yaml& node, std::string_view key) {
  const auto value = node.find(key);
  return value && value->as_bool();
}

DataMessages data_messages(const Yaml& node, std::string_view key) {
  const auto value = node.find(key);
  return value ? read_data_messages(*value) : DataMessages{};
}

Overlap read_overlap(const Yaml& node) {
  node.allow_only({"tp", "pp", "dp", "ep", "aligned"});
  return {.tp = flag(node, "tp"),
          .pp = flag(node, "pp"),
          .dp = data_messages(node, "dp"),
          .ep = flag(node, "ep"),
          .aligned = data_messages(node, "aligned")};
}

void read_schedule(const Yaml& node, Layout& layout) {
  if (node.is_map()) {
    layout.schedule = ScheduleKind::File;
    layout.written = read_written_schedule(node);
    return;
  }
  layout.schedule = node.as_choice<ScheduleKind>();
  if (layout.schedule == ScheduleKind::File) {
    node.fail("a schedule from a file is written {file: PATH}");
  }
}

/// Chunks per rank where the layout does not say.
int usual_chunks(const Layout& layout) {
  if (layout.schedule == ScheduleKind::File) return layout.written.chunks;
  const bool has_two =
      layout.schedule == ScheduleKind::ZbV || layout.schedule == ScheduleKind::DualPipe;
  return has_two ? 2 : 1;
}

Document schedule_document(const Layout& layout) {
  if (layout.schedule == ScheduleKind::File) return to_document(layout.written);
  return to_string(layout.schedule);
}

}  // namespace

std::string_view to_text(DataMessages messages) {
  if (messages.gradients && messages.parameters) return "true";
  if (messages.gradients) return "gradients";
  return messages.parameters ? "parameters" : "false";
}

Document to_document(DataMessages messages) {
  if (messages.gradients == messages.parameters) return messages.gradients;
  return std::string(to_text(messages));
}

DataMessages read_data_messages(const Yaml& node) {
  if (!node.is_scalar()) node.fail("expected true, false, gradients or parameters, got no scalar");
  const std::string text = node.as_string();
  for (const DataMessages each : {DataMessages(true), DataMessages(false),
                                  DataMessages(true, false), DataMessages(false, true)}) {
    if (text == to_text(each)) return each;
  }
  node.fail('"' + text + "\" is not one of true, false, gradients, parameters");
}

program::RankGrid Layout::grid() const {
  return program::RankGrid({tp, cp, 1, dp, pp}, rank_order);
}

program::RankGrid Layout::expert_grid() const {
  return program::RankGrid({expert_tp(), 1, ep, expert_dp(), pp}, rank_order);
}

program::StageMap Layout::stage_map() const {
  if (pp == 1) return program::StageMap::Ring;
  return schedule == ScheduleKind::File ? written.stage_map : stage_map_of(schedule);
}

program::GlobalStages Layout::global_stages() const {
  return {stage_map(), pp, v};
}

bool Layout::has_split_backward() const {
  switch (schedule) {
    case ScheduleKind::Gpipe:
    case ScheduleKind::OneForwardOneBackward:
    case ScheduleKind::Interleaved:
      return false;
    case ScheduleKind::ZbH1:
    case ScheduleKind::ZbH2:
    case ScheduleKind::ZbV:
    case ScheduleKind::DualPipe:
    case ScheduleKind::File:
      break;
  }
  return true;
}

Layout read_layout(const Yaml& node) {
  node.allow_only({"tp", "cp", "cp_kind", "ep", "etp", "dp", "pp", "v", "stages", "group_size",
                   "schedule", "microbatch_size", "sequence_parallel", "zero_stage", "shard_size",
                   "optimizer_offload", "recompute", "rank_order", "overlap"});
  Layout layout;
  layout.tp = degree(node, "tp");
  layout.cp = degree(node, "cp");
  layout.ep = degree(node, "ep");
  if (node.find("etp")) layout.etp = degree(node, "etp");
  if (const auto kind = node.find("cp_kind")) {
    layout.cp_kind = kind->as_choice<models::ContextParallel>();
  }
  layout.dp = degree(node, "dp");
  layout.pp = degree(node, "pp");
  layout.v = degree(node, "v");
  if (const auto size = node.find("group_size")) {
    layout.group_size = static_cast<int>(size->as_integer(0, kDegreeMax));
  }
  if (const auto stages = node.find("stages")) layout.stages = read_stage_layers(*stages);
  if (layout.v > 1) layout.schedule = ScheduleKind::Interleaved;
  if (const auto schedule = node.find("schedule")) {
    read_schedule(*schedule, layout);
    if (!node.find("v")) layout.v = usual_chunks(layout);
  }
  layout.microbatch_size = degree(node, "microbatch_size");
  layout.sequence_parallel = flag(node, "sequence_parallel");
  if (const auto stage = node.find("zero_stage")) {
    layout.zero_stage = static_cast<int>(stage->as_integer(0, 3));
  }
  if (const auto size = node.find("shard_size")) {
    layout.shard_size = static_cast<int>(size->as_integer(0, kDegreeMax));
  }
  if (const auto share = node.find("optimizer_offload")) {
    layout.optimizer_offload = share->as_number();
    if (!(layout.optimizer_offload >= 0 && layout.optimizer_offload <= 1)) {
      share->fail("must be a share, 0 to 1");
    }
  }
  if (const auto recompute = node.find("recompute")) {
    layout.recompute = read_recomputation(*recompute);
  }
  if (const auto order = node.find("rank_order")) {
    try {
      layout.rank_order = program::parse_rank_order(order->as_string());
    } catch (const Error& error) {
      order->fail(error.what());
    }
  }
  if (const auto overlap = node.find("overlap")) layout.overlap = read_overlap(*overlap);
  return layout;
}

Document to_document(const Layout& layout) {
  Document made = {{"tp", layout.tp},
                   {"cp", layout.cp},
                   {"ep", layout.ep},
                   {"dp", layout.dp},
                   {"pp", layout.pp},
                   {"v", layout.v},
                   {"group_size", layout.group_size},
                   {"schedule", schedule_document(layout)},
                   {"microbatch_size", layout.microbatch_size},
                   {"sequence_parallel", layout.sequence_parallel},
                   {"zero_stage", layout.zero_stage},
                   {"recompute", to_document(layout.recompute)},
                   {"rank_order", program::to_text(layout.rank_order)},
                   {"overlap",
                    {{"tp", layout.overlap.tp},
                     {"pp", layout.overlap.pp},
                     {"dp", to_document(layout.overlap.dp)}}}};
  // Younger keys stand only where they say something, so that digests of older plans hold.
  if (layout.etp != 0) made["etp"] = layout.etp;
  if (layout.cp_kind != models::ContextParallel::AllGather) {
    made["cp_kind"] = to_string(layout.cp_kind);
  }
  if (layout.overlap.ep) made["overlap"]["ep"] = true;
  if (layout.overlap.aligned.any()) {
    made["overlap"]["aligned"] = to_document(layout.overlap.aligned);
  }
  if (!layout.stages.is_even()) made["stages"] = to_document(layout.stages);
  if (layout.shard_size != 0) made["shard_size"] = layout.shard_size;
  if (layout.optimizer_offload != 0) made["optimizer_offload"] = layout.optimizer_offload;
  return made;
}

}  // namespace foresail::planner
