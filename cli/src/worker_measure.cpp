#include "worker_measure.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <set>

#include "foresail/base/document.h"
#include "foresail/base/error.h"

namespace foresail::cli {
namespace {

/// Time inside Compute ops.
std::int64_t compute_ns(const runtime::RankMeasurement& measurement) {
  std::int64_t sum = 0;
  for (const runtime::MeasuredSpan& span : measurement.spans) {
    if (span.kernel < 0 && span.lane == static_cast<int>(Lane::Compute)) {
      sum += span.end_ns - span.start_ns;
    }
  }
  return sum;
}

std::set<int> choose(const TraceRanks& chosen, const runtime::Job& job,
                     const std::vector<std::int64_t>& compute) {
  std::set<int> ranks;
  if (chosen.kind == TraceRanks::Kind::List) {
    ranks.insert(chosen.list.begin(), chosen.list.end());
  } else if (chosen.kind == TraceRanks::Kind::All) {
    for (int rank = 0; rank < static_cast<int>(compute.size()); ++rank) ranks.insert(rank);
  } else {
    program::Coordinates at{};
    for (std::size_t stage = 0; stage < job.program.stages.size(); ++stage) {
      at[static_cast<std::size_t>(program::Axis::Pp)] = static_cast<int>(stage);
      ranks.insert(static_cast<int>(job.program.grid.rank(at).value));
    }
    ranks.insert(static_cast<int>(std::ranges::max_element(compute) - compute.begin()));
  }
  return ranks;
}

/// What the first step took beyond the median of the others; null if there is no other.
Document warm_up(std::vector<double> step_times) {
  if (step_times.size() < 2) return nullptr;
  const double first = step_times.front();
  step_times.erase(step_times.begin());
  std::ranges::sort(step_times);
  return first - step_times[step_times.size() / 2];
}

std::string list_text(const std::set<int>& ranks) {
  return fmt::format("{}", fmt::join(ranks, ","));
}

}  // namespace

TraceRanks parse_trace_ranks(const std::string& text) {
  if (text == "all") return {TraceRanks::Kind::All, {}};
  if (text == "class") return {TraceRanks::Kind::StageClass, {}};
  TraceRanks ranks{TraceRanks::Kind::List, {}};
  for (std::size_t at = 0; at <= text.size();) {
    const std::size_t end = std::min(text.find(',', at), text.size());
    int rank = 0;
    const auto [last, code] = std::from_chars(text.data() + at, text.data() + end, rank);
    if (code != std::errc() || last != text.data() + end || rank < 0) {
      throw Error(ErrorCode::InvalidInput,
                  "--trace-ranks: \"" + text + "\" is not all, class or a list like 0,3,5");
    }
    ranks.list.push_back(rank);
    at = end + 1;
  }
  return ranks;
}

std::vector<runtime::RankMeasurement> gather(const RankEnvironment& environment,
                                             const TraceRanks& chosen, const runtime::Job& job,
                                             runtime::RankMeasurement mine, runtime::Store& store) {
  const auto key = [](const char* what, int rank) {
    return std::string("run/") + what + "/" + std::to_string(rank);
  };
  store.set(key("compute", environment.rank), std::to_string(compute_ns(mine)));
  if (environment.rank == 0) {
    std::vector<std::int64_t> compute;
    for (int rank = 0; rank < environment.world_size; ++rank) {
      compute.push_back(std::stoll(store.get(key("compute", rank))));
    }
    store.set("run/traced", list_text(choose(chosen, job, compute)));
  }
  const std::vector<int> traced = parse_trace_ranks(store.get("run/traced")).list;
  if (std::ranges::find(traced, environment.rank) == traced.end()) mine.spans.clear();
  store.set(key("measurement", environment.rank), runtime::pack(mine));
  std::vector<runtime::RankMeasurement> all;
  if (environment.rank != 0) return all;
  for (int rank = 0; rank < environment.world_size; ++rank) {
    all.push_back(runtime::unpack(store.get(key("measurement", rank))));
  }
  return all;
}

std::vector<Document> gather_starts(const RankEnvironment& environment, const Document& mine,
                                    runtime::Store& store) {
  const auto key = [](int rank) { return "run/start/" + std::to_string(rank); };
  store.set(key(environment.rank), mine.dump());
  std::vector<Document> all;
  if (environment.rank != 0) return all;
  for (int rank = 0; rank < environment.world_size; ++rank) {
    all.push_back(parse_json(store.get(key(rank)), "start"));
  }
  return all;
}

void write_run(const std::filesystem::path& folder, const RunRecord& record) {
  const runtime::Job& job = *record.job;
  const program::Trace trace = runtime::make_trace(job, FORESAIL_VERSION, record.ranks);
  std::string lines;
  Document run{{"version", FORESAIL_VERSION},
               {"plan_digest", job.plan_digest},
               {"program_digest", trace.program_digest},
               {"seed", job.seed},
               {"ranks", record.ranks.size()}};
  for (std::size_t step = 0; step < trace.steps.size(); ++step) {
    const StepMetrics metrics = record.meter->of_job(step, trace, record.ranks);
    lines += to_document(metrics).dump() + '\n';
    run["losses"].push_back(metrics.loss);
    run["grad_norms"].push_back(metrics.grad_norm);
    run["step_times_s"].push_back(metrics.step_time_s);
    run["data_waits_s"].push_back(metrics.data_wait_s);
  }
  run["start"] = record.start;
  run["start"]["warm_up_s"] = warm_up(run["step_times_s"]);
  for (const runtime::RankMeasurement& rank : record.ranks) {
    run["executed_digests"].push_back(rank.steps.back().executed_digest);
    run["rank_plan_digests"].push_back(rank.plan_digest);
    run["rank_program_digests"].push_back(rank.program_digest);
    std::int64_t peak = 0;
    for (const runtime::StepSummary& step : rank.steps) peak = std::max(peak, step.peak_bytes);
    run["peak_memory_bytes"].push_back(peak);
  }
  write_file(folder / "trace.json", to_document(trace).dump());
  write_file(folder / "metrics.jsonl", lines);
  write_file(folder / "run.json", run.dump(2) + '\n');
}

}  // namespace foresail::cli
