#include "expert_laws.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <string>
#include <utility>

namespace foresail::planner {
namespace {

using program::Axis;

constexpr double kShareSlack = 1e-9;

class ExpertLaws {
 public:
  ExpertLaws(const models::Model& model, const Layout& layout, const program::Training& training)
      : model_(model), layout_(layout), training_(training) {}

  std::vector<BrokenLaw> check() {
    if (model_.experts.count == 0) {
      check_dense();
      return std::move(broken_);
    }
    check_split();
    check_grid();
    check_load();
    return std::move(broken_);
  }

 private:
  void add(std::string name, std::string message) {
    broken_.push_back({std::move(name), std::move(message)});
  }
  void divides(const std::string& name, const std::string& dividend, std::int64_t value,
               const std::string& divisor, std::int64_t by) {
    if (value % by == 0) return;
    add(name, fmt::format("{} {} % {} = {}, must be 0", dividend, value, divisor, value % by));
  }

  void check_dense() {
    const auto needs = [&](const char* law, const std::string& what, const char* wanted) {
      add(law,
          fmt::format("{}, but model {} has no experts, must be {}", what, model_.name, wanted));
    };
    if (layout_.ep != 1) needs("ep_needs_experts", fmt::format("ep {}", layout_.ep), "1");
    if (layout_.etp != 0) needs("etp_needs_experts", fmt::format("etp {}", layout_.etp), "absent");
    if (layout_.overlap.ep) needs("overlap_ep_needs_experts", "overlap.ep true", "false");
    if (!training_.expert_load.empty()) {
      needs("expert_load_needs_experts",
            fmt::format("expert_load has {} rows", training_.expert_load.size()), "uniform");
    }
  }

  void check_split() {
    const models::Experts& experts = model_.experts;
    const int etp = layout_.expert_tp();
    divides("experts_by_ep", "experts", experts.count, fmt::format("ep {}", layout_.ep),
            layout_.ep);
    divides("expert_ffn_by_etp", "expert ffn", experts.ffn, fmt::format("etp {}", etp), etp);
    divides("shared_ffn_by_tp",
            fmt::format("shared {} * shared_ffn {} =", experts.shared, experts.shared_ffn),
            experts.shared * experts.shared_ffn, fmt::format("tp {}", layout_.tp), layout_.tp);
    if (layout_.tp > 1 && !layout_.sequence_parallel) {
      add("experts_need_sequence_parallel",
          fmt::format("experts with tp {} need sequence_parallel true, but it is false",
                      layout_.tp));
    }
    if (layout_.overlap.ep && experts.shared == 0) {
      add("overlap_ep_needs_shared",
          fmt::format("overlap.ep true, but model {} has no shared experts, must be false",
                      model_.name));
    }
  }

  /// Ranks from one member of a group over pp to the next.
  std::int64_t pipeline_stride(std::int64_t tp, std::int64_t cp, std::int64_t ep,
                               std::int64_t dp) const {
    std::int64_t stride = 1;
    for (const Axis axis : layout_.rank_order) {
      if (axis == Axis::Pp) break;
      if (axis == Axis::Tp) stride *= tp;
      if (axis == Axis::Cp) stride *= cp;
      if (axis == Axis::Ep) stride *= ep;
      if (axis == Axis::Dp) stride *= dp;
    }
    return stride;
  }

  void check_grid() {
    const std::int64_t etp = layout_.expert_tp();
    const std::int64_t ep = layout_.ep;
    const std::int64_t ranks = std::int64_t{layout_.tp} * layout_.cp * layout_.dp;
    if (ranks % (etp * ep) != 0) {
      add("expert_ranks",
          fmt::format("(tp {} * cp {} * dp {}) = {} % (etp {} * ep {}) = {}, must be 0", layout_.tp,
                      layout_.cp, layout_.dp, ranks, etp, ep, ranks % (etp * ep)));
      return;
    }
    const std::int64_t edp = ranks / (etp * ep);
    const std::int64_t dense = pipeline_stride(layout_.tp, layout_.cp, 1, layout_.dp);
    const std::int64_t expert = pipeline_stride(etp, 1, ep, edp);
    if (layout_.pp == 1 || dense == expert) return;
    add("expert_pipelines",
        fmt::format("rank_order {} puts stages {} ranks apart by tp {}, cp {} and dp {}, but those "
                    "of experts {} by etp {}, ep {} and edp {}, must be equal",
                    program::to_text(layout_.rank_order), dense, layout_.tp, layout_.cp, layout_.dp,
                    expert, etp, ep, edp));
  }

  void check_load() {
    const auto& rows = training_.expert_load;
    if (rows.empty()) return;
    const auto layers = static_cast<std::size_t>(models::expert_layers(model_));
    if (rows.size() != 1 && rows.size() != layers) {
      add("expert_load_by_layers",
          fmt::format("expert_load has {} rows, must have 1 or one for each of {} layers with "
                      "experts",
                      rows.size(), layers));
    }
    for (std::size_t row = 0; row < rows.size() && check_row(row); ++row) {
    }
  }

  bool check_row(std::size_t number) {
    const std::vector<double>& row = training_.expert_load[number];
    const models::Experts& experts = model_.experts;
    if (row.size() != static_cast<std::size_t>(experts.count)) {
      add("expert_load_by_experts",
          fmt::format("row {} of expert_load has {} shares, must have {} (experts.count)", number,
                      row.size(), experts.count));
      return false;
    }
    const auto hottest = std::ranges::max_element(row);
    const double most = 1.0 / experts.per_token;
    // A token goes to an expert once.
    if (*hottest > most + kShareSlack) {
      add("expert_load_by_per_token",
          fmt::format("row {} of expert_load gives expert {} a share of {:.4g}, must be at most "
                      "1 / per_token {} = {:.4g}",
                      number, hottest - row.begin(), *hottest, experts.per_token, most));
      return false;
    }
    const double sum = std::accumulate(row.begin(), row.end(), 0.0);
    const bool is_share =
        std::ranges::min(row) >= 0 && sum > 1 - kShareSlack && sum < 1 + kShareSlack;
    if (is_share) return true;
    add("expert_load_sums_to_1",
        fmt::format("row {} of expert_load sums to {:.6g}, must be shares that sum to 1", number,
                    sum));
    return false;
  }

  const models::Model& model_;
  const Layout& layout_;
  const program::Training& training_;
  std::vector<BrokenLaw> broken_;
};

}  // namespace

std::vector<BrokenLaw> check_experts(const models::Model& model, const Layout& layout,
                                     const program::Training& training) {
  return ExpertLaws(model, layout, training).check();
}

std::vector<BrokenLaw> check_context_parallel(const models::Model& model, const Layout& layout) {
  if (layout.cp_kind == models::ContextParallel::AllGather) return {};
  std::vector<BrokenLaw> broken;
  if (layout.cp == 1) {
    broken.push_back({"cp_kind_needs_cp", fmt::format("cp_kind {} needs cp > 1, but cp is 1",
                                                      to_string(layout.cp_kind))});
  }
  if (layout.cp_kind != models::ContextParallel::AllToAll) return broken;
  const std::int64_t ranks = std::int64_t{layout.tp} * layout.cp;
  const auto divides = [&](const char* law, const char* what, int heads) {
    if (heads % ranks == 0) return;
    broken.push_back(
        {law, fmt::format("{} {} % (tp {} * cp {}) = {}, must be 0 with cp_kind all_to_all", what,
                          heads, layout.tp, layout.cp, heads % ranks)});
  };
  divides("heads_by_tp_cp", "heads", model.heads);
  divides("kv_heads_by_tp_cp", "kv_heads", model.kv_heads);
  return broken;
}

}  // namespace foresail::planner
