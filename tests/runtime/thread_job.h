/// \file
/// Runs a Plan with its ranks as threads of the test, connected by Gloo.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "foresail/planner/plan.h"
#include "foresail/runtime/trainer.h"

namespace foresail::testing {

/// A gpt_tiny-like plan on one CPU host: 4 layers, fp32, 8 samples of 64 bytes per step.
struct TinyPlan {
  planner::Layout layout;
  std::string model = "gpt_tiny";
  std::function<void(planner::Plan&)> change = [](planner::Plan&) {};
};
planner::Plan make_plan(const TinyPlan& tiny);

/// `layout` as `change` leaves it.
template <class Change>
planner::Layout changed(planner::Layout layout, const Change& change) {
  change(layout);
  return layout;
}

/// Grouped queries, SwiGLU, RMSNorm, rotary positions, no biases.
void use_llama_parts(planner::Plan& plan);
/// The same with 8 heads of 16 features, two for each key, and a narrow MLP.
void use_wide_llama(planner::Plan& plan);
/// Biases, GeLU, every layer a mixture.
void use_experts(planner::Plan& plan);
/// DeepSeek's and Qwen's parts: a dense layer in front, shared experts behind a gate, SwiGLU.
void use_shared_experts(planner::Plan& plan);

/// What one rank did.
struct RankResult {
  std::vector<runtime::StepSummary> steps;
  std::vector<runtime::MeasuredSpan> spans;
};

struct JobHooks {
  /// Called by each rank before and after its steps.
  std::function<void(runtime::Trainer&, RankId)> before{}, after{};
  /// The network of one rank, instead of Gloo; called in the rank's thread.
  std::function<std::unique_ptr<runtime::Endpoint>(RankId)> endpoint{};
  /// Where one rank computes, instead of the CPU.
  std::function<runtime::Device*(RankId)> device{};
};

/// Throws what the first failing rank threw.
std::vector<RankResult> run_job(const runtime::Job& job, int steps, const JobHooks& hooks = {});

/// "tp 2 pp 2 dp 1 v 2, sequence parallel, zero 1"
std::string describe(const planner::Layout& layout);

/// Every layout of at most `ranks` ranks that breaks no law for the tiny model. Interleaved ones
/// have overlap.pp, which two stages need.
std::vector<planner::Layout> legal_layouts(int ranks);

}  // namespace foresail::testing
