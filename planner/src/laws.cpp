#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "expert_laws.h"
#include "foresail/base/error.h"
#include "foresail/planner/layout.h"
#include "foresail/planner/schedule.h"
#include "layout_laws.h"
#include "schedule_laws.h"

namespace foresail::planner {
namespace {

__extension__ using Wide = __int128;

// Beyond these limits a number is surely a typing error, and some byte count would not fit 64 bits.
constexpr std::int64_t kPassesMax = 1'000'000;  ///< forward passes of all stages
constexpr std::int64_t kLayersMax = 2000;
constexpr std::int64_t kWidthMax = std::int64_t{1} << 22;
constexpr double kElementsMax = 0x1p52;  ///< of one activation, over all layers
constexpr double kScoresMax = 0x1p55;    ///< of the attention matrix, over all layers

/// One message per broken law, every term in it.
class Laws {
 public:
  Laws(const models::Model& model, const Layout& layout, const program::Training& training,
       int devices)
      : model_(model), layout_(layout), training_(training), devices_(devices) {}

  std::vector<BrokenLaw> check() {
    check_positive();
    // The other laws divide by these numbers.
    if (!broken_.empty()) return broken_;
    check_world();
    check_model();
    check_sizes();
    check_sequence();
    check_schedule();
    check_batch();
    return broken_;
  }

 private:
  void add(std::string name, std::string message) {
    broken_.push_back({std::move(name), std::move(message)});
  }

  /// dividend % divisor, both described with their terms, must be 0.
  struct Term {
    std::string text;
    std::int64_t value;
  };
  void divides(const std::string& name, const Term& dividend, const Term& divisor) {
    const std::int64_t rest = dividend.value % divisor.value;
    if (rest == 0) return;
    add(name, fmt::format("{} {} % {} = {}, must be 0", dividend.text, dividend.value, divisor.text,
                          rest));
  }

  void check_positive() {
    const std::vector<Term> terms = {{"tp", layout_.tp},
                                     {"cp", layout_.cp},
                                     {"ep", layout_.ep},
                                     {"dp", layout_.dp},
                                     {"pp", layout_.pp},
                                     {"v", layout_.v},
                                     {"microbatch_size", layout_.microbatch_size},
                                     {"global_batch_size", training_.global_batch_size},
                                     {"sequence_length", training_.sequence_length}};
    for (const Term& term : terms) {
      if (term.value < 1) {
        add("at_least_one", fmt::format("{} {}, must be at least 1", term.text, term.value));
      }
    }
    if (layout_.etp < 0) {
      add("etp_not_negative", fmt::format("etp {}, must be at least 0", layout_.etp));
    }
    if (layout_.group_size < 0) {
      add("group_size_not_negative",
          fmt::format("group_size {}, must be at least 0", layout_.group_size));
    }
    if (layout_.shard_size < 0) {
      add("shard_size_not_negative",
          fmt::format("shard_size {}, must be at least 0", layout_.shard_size));
    }
  }

  void check_world() {
    const Wide world = Wide{layout_.tp} * layout_.cp * layout_.pp * layout_.dp;
    if (world != devices_) {
      add("world_size",
          fmt::format("tp {} * cp {} * pp {} * dp {} = {}, but the cluster has {} devices",
                      layout_.tp, layout_.cp, layout_.pp, layout_.dp, world, devices_));
    }
    auto order = layout_.rank_order;
    std::ranges::sort(order);
    if (std::ranges::adjacent_find(order) != order.end()) {
      add("rank_order", fmt::format("rank_order {} names an axis twice, must name each once",
                                    program::to_text(layout_.rank_order)));
    }
    for (BrokenLaw& law : check_experts(model_, layout_, training_)) {
      broken_.push_back(std::move(law));
    }
    if (layout_.zero_stage < 0 || layout_.zero_stage > 3) {
      add("zero_stage", fmt::format("zero_stage {}, must be 0 to 3", layout_.zero_stage));
    }
    for (BrokenLaw& law : check_sharding(model_, layout_)) broken_.push_back(std::move(law));
  }

  void check_model() {
    const Term tp{fmt::format("tp {}", layout_.tp), layout_.tp};
    divides("heads_by_tp", {"heads", model_.heads}, tp);
    divides("kv_heads_by_tp", {"kv_heads", model_.kv_heads}, tp);
    const bool has_mlp = models::expert_layers(model_) < model_.layers;
    if (has_mlp) divides("ffn_by_tp", {"ffn", model_.ffn}, tp);
    for (BrokenLaw& law : check_stage_layers(model_, layout_)) broken_.push_back(std::move(law));
    for (BrokenLaw& law : check_recomputation(model_, layout_)) broken_.push_back(std::move(law));
  }

  void check_sizes() {
    if (model_.layers > kLayersMax) {
      add("layers_max", fmt::format("layers {}, must be at most {}", model_.layers, kLayersMax));
    }
    const std::vector<Term> widths = {{"hidden", model_.hidden},
                                      {"ffn", model_.ffn},
                                      {"vocab", model_.vocab},
                                      {"head_size", model_.head_size},
                                      {"heads", model_.heads}};
    std::int64_t widest = 0;
    for (const Term& width : widths) {
      widest = std::max(widest, width.value);
      if (width.value <= kWidthMax) continue;
      add("width_max",
          fmt::format("{} {}, must be at most {}", width.text, width.value, kWidthMax));
    }
    const double samples = static_cast<double>(layout_.microbatch_size) * model_.layers;
    const double length = static_cast<double>(training_.sequence_length);
    if (samples * length * static_cast<double>(widest) > kElementsMax ||
        samples * length * length * model_.heads > kScoresMax) {
      add("activations_max",
          fmt::format("layers {} * microbatch_size {} * sequence_length {} * (heads {} * "
                      "sequence_length or width {}) is beyond what can be counted",
                      model_.layers, layout_.microbatch_size, training_.sequence_length,
                      model_.heads, widest));
    }
  }

  void check_sequence() {
    const Term length{"sequence_length", training_.sequence_length};
    if (layout_.sequence_parallel) {
      if (layout_.tp == 1) {
        add("sequence_parallel_needs_tp", "sequence_parallel needs tp > 1, but tp is 1");
      }
      divides("sequence_by_tp_cp", length,
              {fmt::format("(tp {} * cp {})", layout_.tp, layout_.cp),
               std::int64_t{layout_.tp} * layout_.cp});
    }
    for (BrokenLaw& law : check_context_parallel(model_, layout_)) {
      broken_.push_back(std::move(law));
    }
    if (layout_.cp > 1) {
      divides("sequence_by_2cp", length,
              {fmt::format("(2 * cp {})", layout_.cp), std::int64_t{2} * layout_.cp});
    }
  }

  void check_schedule() {
    const bool is_interleaved = layout_.schedule == ScheduleKind::Interleaved;
    const std::string_view schedule = to_string(layout_.schedule);
    for (BrokenLaw& law : check_zero_bubble(layout_)) broken_.push_back(std::move(law));
    for (BrokenLaw& law : check_alignment(layout_)) broken_.push_back(std::move(law));
    if (layout_.v > 1 && !is_interleaved && !has_own_chunks(layout_)) {
      add("v_needs_interleaved",
          fmt::format("v {} needs schedule interleaved, but schedule is {}", layout_.v, schedule));
    }
    if (layout_.group_size > 0 && !is_interleaved) {
      add("group_size_needs_interleaved",
          fmt::format("group_size {} needs schedule interleaved, but schedule is {}",
                      layout_.group_size, schedule));
    }
    if (is_interleaved && layout_.v == 1) {
      add("interleaved_needs_v", "schedule interleaved needs v > 1, but v is 1");
    }
    if (layout_.v > 1 && layout_.pp == 1) {
      add("v_needs_pp", fmt::format("v {} needs pp > 1, but pp is 1", layout_.v));
    }
    if (is_interleaved && layout_.pp == 2 && !layout_.overlap.pp) {
      add("interleaved_needs_overlap",
          "schedule interleaved without overlap.pp needs pp > 2, but pp is 2");
    }
  }

  void check_batch() {
    const Wide replicas = Wide{layout_.microbatch_size} * layout_.dp;
    const Wide rest = training_.global_batch_size % replicas;
    const Wide microbatches = training_.global_batch_size / replicas;
    if (rest != 0) {
      add("batch_by_replicas",
          fmt::format("global_batch_size {} % (microbatch_size {} * dp {}) = {}, must be 0",
                      training_.global_batch_size, layout_.microbatch_size, layout_.dp, rest));
      return;
    }
    const Wide passes = microbatches * layout_.v * layout_.pp;
    if (passes > kPassesMax) {
      add("passes_max",
          fmt::format("global_batch_size {} / (microbatch_size {} * dp {}) * v {} * pp {} = {} "
                      "forward passes, must be at most {}",
                      training_.global_batch_size, layout_.microbatch_size, layout_.dp, layout_.v,
                      layout_.pp, passes, kPassesMax));
      return;
    }
    if (layout_.schedule == ScheduleKind::Interleaved) {
      check_group(static_cast<std::int64_t>(microbatches));
    }
    for (BrokenLaw& law : check_microbatches(layout_, static_cast<std::int64_t>(microbatches))) {
      broken_.push_back(std::move(law));
    }
  }

  void check_group(std::int64_t microbatches) {
    const int group = layout_.group_size == 0 ? layout_.pp : layout_.group_size;
    if (group < layout_.pp || group > microbatches) {
      add("group_size_range",
          fmt::format("group_size {}, must be at least pp {} and at most the {} microbatches",
                      group, layout_.pp, microbatches));
      return;
    }
    const std::int64_t rest = microbatches % group;
    if (rest != 0 && rest < layout_.pp) {
      add("microbatches_by_group",
          fmt::format("{} microbatches % group_size {} = {}, must be 0 or at least pp {}: {}",
                      microbatches, group, rest, layout_.pp,
                      consequence(static_cast<int>(microbatches), group)));
    }
  }

  /// What the schedule would do if it were allowed.
  std::string consequence(int microbatches, int group) const {
    const double chunks = layout_.v;
    try {
      const TimedSchedule timed = simulate(
          make_schedule(ScheduleKind::Interleaved, {layout_.pp, layout_.v, microbatches, group}),
          {.forward = 1 / chunks, .backward = 2 / chunks});
      return fmt::format("the bubble would be {:.2f} instead of {:.2f}",
                         timed.makespan / (3.0 * microbatches) - 1,
                         (layout_.pp - 1) / (chunks * microbatches));
    } catch (const Error& deadlock) {
      return deadlock.what();
    }
  }

  const models::Model& model_;
  const Layout& layout_;
  const program::Training& training_;
  int devices_;
  std::vector<BrokenLaw> broken_;
};

}  // namespace

std::vector<BrokenLaw> check_laws(const models::Model& model, const Layout& layout,
                                  const program::Training& training, int devices) {
  return Laws(model, layout, training, devices).check();
}

}  // namespace foresail::planner
