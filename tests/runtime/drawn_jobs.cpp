#include "drawn_jobs.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <vector>

#include "foresail/base/error.h"
#include "foresail/base/rng.h"
#include "parity.h"
#include "worker_job.h"

namespace foresail::testing {
namespace {

using planner::Layout;
using planner::Plan;
using planner::ScheduleKind;
using Change = std::function<void(Plan&)>;

constexpr std::uint64_t kSeed = 20261201;
constexpr int kRanksMax = 8;
/// LAMB on experts in bf16: what rounding sends to another expert grows with the steps. At a rate
/// of 0.015 layouts differ by up to 7 % in the gradient norm of step 28, at this one by 0.04 %.
constexpr double kBf16ExpertRate = 0.005;

class Draw {
 public:
  explicit Draw(std::uint64_t index) : stream_(Rng(kSeed).stream("parity", index)) {}
  bool one_in(std::uint64_t n) { return stream_.below(n) == 0; }
  template <class T>
  T of(const std::vector<T>& choices) {
    return choices[stream_.below(choices.size())];
  }
  template <class T>
  void shuffle(T& list) {
    for (std::size_t i = list.size(); i > 1; --i) std::swap(list[i - 1], list[stream_.below(i)]);
  }

 private:
  RandomStream stream_;
};

struct Named {
  std::string name;
  Change change;
};

void use_parallel_block(Plan& plan) {
  plan.model.block = models::Block::Parallel;
  plan.model.attention = models::Attention::SlidingWindow;
  plan.model.window = 16;
}

void use_balanced_experts(Plan& plan) {
  use_shared_experts(plan);
  plan.model.experts.balance_loss = 0.1;
}

/// A capacity that holds every copy, so that nothing is dropped.
void use_roomy_experts(Plan& plan) {
  use_experts(plan);
  plan.model.experts.capacity_factor = 2;
}

const std::vector<Named>& all_models() {
  static const std::vector<Named> kAll{
      {"gpt", [](Plan&) {}},
      {"tied", [](Plan& plan) { plan.model.tied_embeddings = true; }},
      {"parallel block", use_parallel_block},
      {"llama", use_wide_llama},
      {"tied llama",
       [](Plan& plan) {
         use_wide_llama(plan);
         plan.model.tied_embeddings = true;
       }},
      {"experts", use_experts},
      {"shared experts", use_balanced_experts},
      {"experts with room", use_roomy_experts}};
  return kAll;
}

/// LAMB's rate is a matrix's relative change: about what 3e-4 is to matrices of deviation 0.02.
const std::vector<Named>& all_optimizers() {
  static const std::vector<Named> kAll{{"adam", [](Plan&) {}},
                                       {"adamw, cosine",
                                        [](Plan& plan) {
                                          plan.training.optimizer = program::Optimizer::AdamW;
                                          plan.training.weight_decay = 0.1;
                                          plan.training.learning_rate_decay =
                                              program::LearningRateDecay::Cosine;
                                          plan.training.learning_rate_min = 3e-5;
                                          plan.training.warmup_steps = 2;
                                          plan.training.decay_steps = 60;
                                        }},
                                       {"lamb", [](Plan& plan) {
                                          plan.training.optimizer = program::Optimizer::Lamb;
                                          plan.training.weight_decay = 0.01;
                                          plan.training.learning_rate = 0.015;
                                        }}};
  return kAll;
}

/// ZB-V and DualPipe break most laws: they are tried more often.
ScheduleKind draw_schedule(Draw& draw) {
  return draw.of<ScheduleKind>(
      {ScheduleKind::Gpipe, ScheduleKind::OneForwardOneBackward, ScheduleKind::Interleaved,
       ScheduleKind::ZbH1, ScheduleKind::ZbH2, ScheduleKind::ZbV, ScheduleKind::ZbV,
       ScheduleKind::ZbV, ScheduleKind::DualPipe, ScheduleKind::DualPipe, ScheduleKind::DualPipe});
}

Layout draw_layout(Draw& draw, bool has_experts) {
  Layout layout;
  layout.tp = draw.of<int>({1, 1, 2, 4});
  layout.cp = draw.of<int>({1, 1, 2, 4});
  layout.dp = draw.of<int>({1, 2, 2, 4, 8});
  layout.pp = draw.of<int>({1, 1, 2, 2, 4, 4, 4});
  layout.cp_kind = draw.of<models::ContextParallel>({models::ContextParallel::AllGather,
                                                     models::ContextParallel::Ring,
                                                     models::ContextParallel::AllToAll});
  layout.sequence_parallel = layout.tp > 1 && !draw.one_in(3);
  if (has_experts) {
    layout.ep = draw.of<int>({1, 2, 4});
    layout.etp = draw.of<int>({0, 1, 2});
    layout.sequence_parallel = layout.tp > 1;
    layout.overlap.ep = draw.one_in(2);
  }
  if (layout.pp > 1) {
    layout.schedule = draw_schedule(draw);
    const bool has_two =
        layout.schedule == ScheduleKind::ZbV || layout.schedule == ScheduleKind::DualPipe;
    const bool is_interleaved = layout.schedule == ScheduleKind::Interleaved;
    if (is_interleaved || has_two) layout.v = 2;
    layout.overlap.pp = is_interleaved || draw.one_in(2);
  }
  layout.zero_stage = draw.of<int>({0, 1, 2, 3});
  layout.overlap.dp = draw.one_in(2);
  if (layout.zero_stage > 0 && layout.dp * layout.cp >= 4 && draw.one_in(2)) layout.shard_size = 2;
  layout.recompute = draw.of<models::Recompute>(
      {models::Recompute::None, models::Recompute::Selective, models::Recompute::Full});
  layout.microbatch_size = draw.of<std::int64_t>({1, 1, 2});
  if (draw.one_in(3)) draw.shuffle(layout.rank_order);
  return layout;
}

std::string describe_all(const Layout& layout) {
  std::string text = describe(layout);
  text += ", recompute " + planner::to_text(layout.recompute);
  text += ", microbatch " + std::to_string(layout.microbatch_size);
  if (layout.overlap.pp) text += ", overlap pp";
  if (layout.overlap.ep) text += ", overlap ep";
  if (layout.rank_order != Layout{}.rank_order) {
    text += ", order " + program::to_text(layout.rank_order);
  }
  return text;
}

/// Whether planner and runtime take it.
bool is_possible(const TinyPlan& tiny) {
  const int ranks = tiny.layout.world_size();
  if (ranks < 2 || ranks > kRanksMax) return false;
  const Plan plan = make_plan(tiny);
  if (!planner::check_laws(plan.model, plan.layout, plan.training, ranks).empty()) return false;
  runtime::check_supported(cli::make_job(plan));
  return true;
}

/// Which messages of data parallelism overlap, and which of them all stages start together.
void draw_messages(std::uint64_t index, TinyPlan& tiny) {
  RandomStream draw = Rng(kSeed).stream("data messages", index);
  const std::array<planner::DataMessages, 3> all = {{{true, true}, {true, false}, {false, true}}};
  Layout& layout = tiny.layout;
  const planner::DataMessages some = all[draw.below(3)];
  const planner::DataMessages aligned = all[draw.below(3)];
  if (layout.overlap.dp.any()) layout.overlap.dp = some;
  layout.overlap.aligned = aligned;
  if (!is_possible(tiny)) layout.overlap.aligned = false;
}

}  // namespace

DrawnJob draw_job(std::uint64_t index) {
  Draw draw(index);
  // Models, optimizers and formats take turns, so that few draws have all of them.
  const Named model = all_models()[index % all_models().size()];
  const bool has_experts = model.name.find("experts") != std::string::npos;
  const Named optimizer = draw.of(all_optimizers());
  const bool is_bf16 = index % 3 == 1;
  const bool is_async = !draw.one_in(4);
  // Streams of their own: they neither make a layout impossible nor change those drawn before.
  const bool is_fused = Rng(kSeed).stream("fused attention", index).below(3) == 0;
  const bool overlaps_tp = Rng(kSeed).stream("overlap tp", index).below(2) == 1;
  const bool has_dropout = Rng(kSeed).stream("dropout", index).below(3) == 0;
  const bool is_one_by_one = Rng(kSeed).stream("kernels one by one", index).below(4) == 0;
  DrawnJob job;
  job.tiny.change = [=](Plan& plan) {
    model.change(plan);
    optimizer.change(plan);
    if (is_bf16) {
      plan.training.precision = DType::Bf16;
      plan.training.global_batch_size = kBf16Batch;
      const bool is_lamb = plan.training.optimizer == program::Optimizer::Lamb;
      if (has_experts && is_lamb) plan.training.learning_rate = kBf16ExpertRate;
    }
    plan.stack.async_tensor_parallel = is_async;
    plan.stack.flash_attention = is_fused;
    plan.model.dropout = has_dropout;
    plan.stack.fused_kernels = !is_one_by_one;
  };
  do {
    job.tiny.layout = draw_layout(draw, has_experts);
  } while (!is_possible(job.tiny));
  job.tiny.layout.overlap.tp = job.tiny.layout.tp > 1 && overlaps_tp;
  draw_messages(index, job.tiny);
  job.is_bf16 = is_bf16;
  job.is_dropless = has_experts && model.name != "experts with room";
  job.learner = model.name + ", " + optimizer.name + (is_bf16 ? ", bf16" : ", fp32");
  if (is_fused) job.learner += ", flash attention";
  if (has_dropout) job.learner += ", dropout";
  if (is_one_by_one) job.learner += ", kernels one by one";
  job.text = job.learner + ": " + describe_all(job.tiny.layout);
  return job;
}

TinyPlan one_process_of(const DrawnJob& job) {
  TinyPlan tiny = job.tiny;
  tiny.layout = {};
  return tiny;
}

int parity_layouts(int usual) {
  const char* given = std::getenv("FORESAIL_PARITY_LAYOUTS");
  return given == nullptr ? usual : std::atoi(given);
}

}  // namespace foresail::testing
