#include "thread_job.h"

#include <chrono>
#include <exception>
#include <mutex>
#include <thread>

#include "foresail/runtime/gloo.h"
#include "foresail/runtime/store.h"
#include "foresail/runtime/text_data.h"

namespace foresail::testing {
namespace {

using std::chrono::seconds;

Yaml parse(const std::string& text) {
  return Yaml::parse(text, "test");
}

const std::filesystem::path kSource = FORESAIL_SOURCE_DIR;

/// The first failure is the cause; the others follow from it.
class FirstFailure {
 public:
  void catch_current() {
    const std::scoped_lock lock(mutex_);
    if (!failure_) failure_ = std::current_exception();
  }
  void rethrow() {
    if (failure_) std::rethrow_exception(failure_);
  }

 private:
  std::mutex mutex_;
  std::exception_ptr failure_;
};

}  // namespace

void use_llama_parts(planner::Plan& plan) {
  plan.model.kv_heads = 2;
  plan.model.activation = models::Activation::SwiGlu;
  plan.model.norm = models::Norm::RmsNorm;
  plan.model.positions = models::Positions::Rotary;
  plan.model.max_positions = 0;
  plan.model.biases = false;
}

void use_wide_llama(planner::Plan& plan) {
  use_llama_parts(plan);
  plan.model.heads = 8;
  plan.model.head_size = 16;
  plan.model.kv_heads = 4;
  plan.model.ffn = 256;
}

void use_experts(planner::Plan& plan) {
  plan.model.experts = {.count = 4, .per_token = 2, .ffn = 64};
}

void use_shared_experts(planner::Plan& plan) {
  plan.model.activation = models::Activation::SwiGlu;
  plan.model.norm = models::Norm::RmsNorm;
  plan.model.biases = false;
  plan.model.ffn = 128;
  plan.model.experts = {.count = 8,
                        .per_token = 2,
                        .ffn = 32,
                        .shared = 2,
                        .shared_ffn = 32,
                        .shared_gate = true,
                        .first_dense_layers = 1};
}

planner::Plan make_plan(const TinyPlan& tiny) {
  planner::Plan plan;
  plan.model = models::resolve_model(parse(tiny.model), {kSource / "models/catalogue"});
  plan.layout = tiny.layout;
  const std::string ranks = std::to_string(plan.layout.world_size());
  plan.cluster = topologies::resolve_cluster(
      parse("{name: host, gpus: " + ranks + "}"),
      {kSource / "topologies/catalogue/clusters", kSource / "topologies/catalogue/devices",
       kSource / "topologies/catalogue"});
  plan.placement = program::Placement::identity(plan.layout.world_size());
  plan.stack.flash_attention = false;
  plan.training.global_batch_size = 8;
  plan.training.sequence_length = 64;
  plan.training.precision = DType::Fp32;
  plan.training.learning_rate = 3e-4;
  tiny.change(plan);
  return plan;
}

std::vector<RankResult> run_job(const runtime::Job& job, int steps, const JobHooks& hooks) {
  const int ranks = job.program.grid.world_size();
  runtime::MemoryStore store{seconds(30)};
  const runtime::GlooEndpoint gloo({.timeout = seconds(30)});
  std::vector<RankResult> results(static_cast<std::size_t>(ranks));
  FirstFailure failure;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        const RankId id{static_cast<std::uint32_t>(rank)};
        runtime::TextData data({.path = runtime::TextData::default_path(),
                                .sequence_length = job.training.sequence_length,
                                .seed = job.seed});
        const auto own = hooks.endpoint ? hooks.endpoint(id) : nullptr;
        runtime::Trainer trainer({.job = &job,
                                  .rank = id,
                                  .store = &store,
                                  .endpoint = own != nullptr ? own.get() : &gloo,
                                  .data = &data,
                                  .device = hooks.device ? hooks.device(id) : nullptr});
        RankResult& result = results[static_cast<std::size_t>(rank)];
        if (hooks.before) hooks.before(trainer, id);
        for (int step = 0; step < steps; ++step) result.steps.push_back(trainer.run_step());
        if (hooks.after) hooks.after(trainer, id);
        result.spans = trainer.spans();
      } catch (...) {
        failure.catch_current();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  failure.rethrow();
  return results;
}

std::string describe(const planner::Layout& layout) {
  std::string text = "tp " + std::to_string(layout.tp) + " pp " + std::to_string(layout.pp) +
                     " dp " + std::to_string(layout.dp) + " v " + std::to_string(layout.v);
  if (layout.schedule != planner::ScheduleKind::OneForwardOneBackward) {
    text += " " + std::string(to_string(layout.schedule));
  }
  if (layout.cp > 1) {
    text += " cp " + std::to_string(layout.cp) + " " + std::string(to_string(layout.cp_kind));
  }
  if (layout.ep > 1) text += " ep " + std::to_string(layout.ep);
  if (layout.etp > 0) text += " etp " + std::to_string(layout.etp);
  if (layout.sequence_parallel) text += ", sequence parallel";
  if (layout.zero_stage > 0) text += ", zero " + std::to_string(layout.zero_stage);
  if (layout.shard_size > 0) text += ", shard size " + std::to_string(layout.shard_size);
  if (layout.overlap.tp) text += ", overlap tp";
  if (layout.overlap.dp.any()) {
    text += ", overlap dp ";
    text += planner::to_text(layout.overlap.dp);
  }
  if (layout.overlap.aligned.any()) {
    text += ", aligned ";
    text += planner::to_text(layout.overlap.aligned);
  }
  return text;
}

std::vector<planner::Layout> legal_layouts(int ranks) {
  std::vector<planner::Layout> legal;
  const planner::Plan plan = make_plan({});
  for (int tp = 1; tp <= ranks; ++tp) {
    for (int pp = 1; tp * pp <= ranks; ++pp) {
      for (int dp = 1; tp * pp * dp <= ranks; ++dp) {
        for (int v = 1; v <= plan.model.layers; ++v) {
          planner::Layout layout;
          layout.tp = tp;
          layout.pp = pp;
          layout.dp = dp;
          layout.v = v;
          layout.overlap.pp = v > 1;
          if (v > 1) layout.schedule = planner::ScheduleKind::Interleaved;
          const int world = layout.world_size();
          if (planner::check_laws(plan.model, layout, plan.training, world).empty()) {
            legal.push_back(layout);
          }
        }
      }
    }
  }
  return legal;
}

}  // namespace foresail::testing
