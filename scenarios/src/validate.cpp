#include "foresail/scenarios/validate.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <map>
#include <mutex>
#include <set>
#include <thread>

#include "foresail/scenarios/yardstick.h"

namespace foresail::scenarios {
namespace {

// Either field is filled.
struct RowOutcome {
  std::optional<ValidatedRow> row;
  std::string reason;
};

struct Catalogue {
  std::vector<StackDescription> stacks = load_stacks();
  Yardstick yardstick = load_yardstick();
  Spread spread = load_spread();
};

std::string sweep_of(const Row& row, const std::string& stack, const planner::Plan& plan) {
  return fmt::format("{} {}, {} x {}, {} GPUs, sequence {}, {}", row.source, stack,
                     plan.model.layers, plan.model.hidden, row.gpus, row.sequence,
                     to_string(plan.training.precision));
}

RowOutcome validate_row(const Row& row, const Catalogue& catalogue, const ValidateOptions& options,
                        const Anchored* anchored) {
  RowPlanResult planned = plan_row(row, catalogue.stacks);
  if (!planned.made) return {std::nullopt, planned.reason};
  planner::Plan& plan = planned.made->plan;
  if (options.seed) plan.seed = *options.seed;
  if (anchored != nullptr) {
    plan.cluster.device.constants = anchored->constants;
    plan.stack.host_per_kernel = anchored->host_per_kernel;
  }
  const Prediction prediction = predict(plan, options.predict);
  ValidatedRow result;
  result.id = row.id;
  result.source = row.source;
  result.device = plan.cluster.device.name;
  result.published_s = row.published_s;
  result.predicted_s = to_seconds(prediction.outcome.iteration);
  result.stack = planned.made->stack;
  result.assumed = planned.made->assumed;
  for (const std::string& column : row.unused) {
    result.assumed.push_back(fmt::format("column {} not used", column));
  }
  result.assumed.insert(result.assumed.end(), row.remarks.begin(), row.remarks.end());
  if (const auto naive = catalogue.yardstick.predict(plan)) result.naive_s = to_seconds(*naive);
  // Whoever has measured a few steps knows the software and the fabric.
  const Novelty novelty = anchored != nullptr ? Novelty::Configuration
                                              : novelty_of(plan, result.stack, catalogue.spread);
  result.intervals = intervals(prediction.outcome.iteration, novelty, catalogue.spread);
  result.sweep = sweep_of(row, result.stack, plan);
  result.layout = fmt::format("batch {}\n{}", row.global_batch, to_yaml(to_document(plan.layout)));
  result.samples = static_cast<double>(row.global_batch);
  return {std::move(result), {}};
}

// Runs work(i) for all i below `count` on several threads; what one throws is thrown again.
void for_each_row(std::size_t count, const ValidateOptions& options,
                  const std::function<void(std::size_t)>& work) {
  std::atomic<std::size_t> next = 0;
  std::mutex reporting;
  std::size_t done = 0;
  std::exception_ptr failure;
  const auto loop = [&] {
    for (std::size_t i = next++; i < count; i = next++) {
      try {
        work(i);
      } catch (...) {
        const std::lock_guard lock(reporting);
        if (!failure) failure = std::current_exception();
        next = count;
      }
      const std::lock_guard lock(reporting);
      if (options.progress) options.progress(++done, count);
    }
  };
  std::vector<std::jthread> helpers;
  for (int t = 1; t < options.threads; ++t) helpers.emplace_back(loop);
  loop();
  helpers.clear();
  if (failure) std::rethrow_exception(failure);
}

// Refits on the first rows of each source, device and stack, and predicts all anew.
void apply_anchors(const RowFile& file, const Catalogue& catalogue, const ValidateOptions& options,
                   std::vector<RowOutcome>& outcomes, Scoreboard& board) {
  std::map<std::string, std::vector<std::size_t>> groups;
  for (std::size_t i = 0; i < outcomes.size(); ++i) {
    const auto& row = outcomes[i].row;
    if (row) groups[row->source + " " + row->device + " " + row->stack].push_back(i);
  }
  const AnchorSettings settings = load_anchor_settings();
  std::map<std::size_t, Anchored> by_row;
  std::set<std::size_t> anchors;
  for (auto& [name, members] : groups) {
    std::ranges::sort(members, {}, [&](std::size_t i) { return file.rows[i].id; });
    const auto count = std::min(members.size(), static_cast<std::size_t>(options.anchor_rows));
    std::vector<AnchorRow> measured;
    for (std::size_t k = 0; k < count; ++k) {
      measured.push_back({&file.rows[members[k]], outcomes[members[k]].row->predicted_s});
      anchors.insert(members[k]);
    }
    const Anchored anchored = fit_anchor(measured, catalogue.stacks, settings, options.threads);
    board.anchors.push_back({name, static_cast<int>(count), anchored.moved});
    for (const std::size_t member : members) by_row.emplace(member, anchored);
  }
  std::vector<std::size_t> rows;
  for (const auto& [i, anchored] : by_row) rows.push_back(i);
  for_each_row(rows.size(), options, [&](std::size_t k) {
    const std::size_t i = rows[k];
    outcomes[i] = validate_row(file.rows[i], catalogue, options, &by_row.at(i));
    if (outcomes[i].row) outcomes[i].row->anchored = anchors.contains(i);
  });
}

}  // namespace

Scoreboard validate(const RowFile& file, const ValidateOptions& options) {
  const Catalogue catalogue;
  std::vector<RowOutcome> outcomes(file.rows.size());
  for_each_row(outcomes.size(), options, [&](std::size_t i) {
    outcomes[i] = validate_row(file.rows[i], catalogue, options, nullptr);
  });
  Scoreboard board;
  board.skipped = file.skipped;
  if (options.anchor_rows > 0) apply_anchors(file, catalogue, options, outcomes, board);
  for (std::size_t i = 0; i < outcomes.size(); ++i) {
    if (outcomes[i].row) {
      board.rows.push_back(std::move(*outcomes[i].row));
    } else {
      board.skipped.push_back({file.rows[i].id, outcomes[i].reason});
    }
  }
  return board;
}

}  // namespace foresail::scenarios
