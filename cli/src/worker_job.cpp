#include "worker_job.h"

namespace foresail::cli {
namespace {

runtime::ChunkPart part_of(const planner::StagePart& stage_part) {
  runtime::ChunkPart part;
  part.first_layer = stage_part.first_layer;
  part.end_layer = stage_part.end_layer;
  if (stage_part.has_embedding && stage_part.has_head) {
    part.ends = runtime::ChunkEnds::Both;
  } else if (stage_part.has_embedding) {
    part.ends = runtime::ChunkEnds::Embedding;
  } else if (stage_part.has_head) {
    part.ends = runtime::ChunkEnds::Head;
  }
  return part;
}

models::Split split_of(const planner::Plan& plan) {
  models::Split split;
  split.tp = plan.layout.tp;
  split.cp = plan.layout.cp;
  split.sequence_parallel = plan.layout.sequence_parallel;
  split.microbatch_size = plan.layout.microbatch_size;
  split.sequence_length = plan.training.sequence_length;
  split.dtype = plan.training.precision;
  split.recompute = plan.layout.recompute.what;
  split.recompute_modules = plan.layout.recompute.modules;
  split.overlap_tp = plan.layout.overlap.tp;
  split.context_parallel = plan.layout.cp_kind;
  split.ep = plan.layout.ep;
  split.expert_tp = plan.layout.expert_tp();
  split.overlap_ep = plan.layout.overlap.ep;
  split.stack = plan.stack;
  return split;
}

}  // namespace

runtime::Job make_job(const planner::Plan& plan) {
  runtime::Job job;
  job.model = plan.model;
  job.split = split_of(plan);
  job.training = plan.training;
  job.program = planner::lower(plan);
  for (int stage = 0; stage < plan.layout.pp; ++stage) {
    std::vector<runtime::ChunkPart>& parts = job.parts.emplace_back();
    for (int chunk = 0; chunk < planner::chunk_count(plan); ++chunk) {
      parts.push_back(part_of(planner::stage_part(plan, stage, chunk)));
    }
  }
  job.zero_stage = plan.layout.zero_stage;
  job.optimizer_offload = plan.layout.optimizer_offload;
  if (!plan.layout.recompute.is_plain()) job.recompute = to_text(plan.layout.recompute);
  job.schedule = std::string(to_string(plan.layout.schedule));
  job.seed = plan.seed;
  job.plan_digest = plan.digest();
  return job;
}

}  // namespace foresail::cli
