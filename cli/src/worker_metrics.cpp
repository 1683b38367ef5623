#include "worker_metrics.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "foresail/base/error.h"
#include "foresail/base/quantity.h"
#include "foresail/report/breakdown.h"
#include "foresail/scenarios/simulate.h"

namespace foresail::cli {
namespace {

/// A Trace with one step of another.
program::Trace only_step(const program::Trace& trace, std::size_t step) {
  program::Trace one = trace;
  one.steps = {trace.steps.at(step)};
  std::erase_if(one.spans, [step](const program::Span& span) {
    return static_cast<std::size_t>(span.step) != step;
  });
  for (program::Span& span : one.spans) span.step = 0;
  return one;
}

double exposed_seconds(const program::Program& program, const program::Trace& one_step) {
  if (one_step.spans.empty()) return 0;
  const report::Breakdown parts = report::break_down(program, one_step);
  return to_seconds(parts.tp_exposed + parts.ep_exposed + parts.cp_exposed + parts.dp_exposed +
                    parts.pp_exposed);
}

}  // namespace

Document to_document(const StepMetrics& metrics) {
  return {{"step", metrics.step},
          {"loss", metrics.loss},
          {"grad_norm", metrics.grad_norm},
          {"step_time_s", metrics.step_time_s},
          {"tokens_per_s", metrics.tokens_per_s},
          {"mfu", metrics.mfu},
          {"memory_bytes", metrics.memory_bytes},
          {"exposed_communication_s", metrics.exposed_communication_s},
          {"data_wait_s", metrics.data_wait_s}};
}

std::string to_text(const StepMetrics& metrics) {
  return fmt::format(
      "step {:4}  loss {:.4f}  grad norm {:.4f}  {:.0f} tokens/s  MFU {:.1f} %  memory {}  "
      "exposed {}  data {:.2f} ms",
      metrics.step, metrics.loss, metrics.grad_norm, metrics.tokens_per_s, metrics.mfu * 100,
      foresail::to_text(Bytes(metrics.memory_bytes)),
      foresail::to_text(duration_from_seconds(metrics.exposed_communication_s)),
      metrics.data_wait_s * 1e3);
}

StepMeter::StepMeter(const planner::Plan& plan, const runtime::Job& job)
    : job_(job),
      tokens_(static_cast<double>(job.training.global_batch_size * job.training.sequence_length)) {
  report::StepResult second;
  second.iteration_time = duration_from_seconds(1);
  scenarios::set_rates(plan, job.program, second);
  mfu_of_a_second_ = second.mfu;
}

StepMetrics StepMeter::timed(const runtime::StepSummary& step, double seconds) const {
  StepMetrics metrics;
  metrics.step = step.step;
  metrics.loss = step.loss;
  metrics.grad_norm = step.gradient_norm;
  metrics.step_time_s = seconds;
  metrics.tokens_per_s = tokens_ / seconds;
  metrics.mfu = mfu_of_a_second_ / seconds;
  metrics.memory_bytes = step.peak_bytes;
  metrics.data_wait_s = static_cast<double>(step.data_wait_ns) * 1e-9;
  return metrics;
}

StepMetrics StepMeter::of_rank(const runtime::StepSummary& step, RankId rank,
                               const std::vector<runtime::MeasuredSpan>& spans) const {
  StepMetrics metrics = timed(step, static_cast<double>(step.end_ns - step.start_ns) * 1e-9);
  runtime::RankMeasurement alone;
  alone.rank = rank;
  alone.steps = {step};
  alone.steps.front().step = 0;
  alone.spans = spans;
  for (runtime::MeasuredSpan& span : alone.spans) span.step = 0;
  metrics.exposed_communication_s =
      exposed_seconds(job_.program, runtime::make_trace(job_, FORESAIL_VERSION, {alone}));
  return metrics;
}

StepMetrics StepMeter::of_job(std::size_t step, const program::Trace& trace,
                              const std::vector<runtime::RankMeasurement>& ranks) const {
  StepMetrics metrics = timed(ranks.front().steps.at(step), to_seconds(trace.steps.at(step)));
  for (const runtime::RankMeasurement& rank : ranks) {
    const runtime::StepSummary& here = rank.steps.at(step);
    metrics.memory_bytes = std::max(metrics.memory_bytes, here.peak_bytes);
    metrics.data_wait_s =
        std::max(metrics.data_wait_s, static_cast<double>(here.data_wait_ns) * 1e-9);
  }
  metrics.exposed_communication_s = exposed_seconds(job_.program, only_step(trace, step));
  return metrics;
}

JsonLines::JsonLines(const std::filesystem::path& path)
    : path_(path),
      file_(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0666)) {
  if (file_ < 0) {
    throw Error(ErrorCode::InvalidInput, path.string() + ": " + std::strerror(errno));
  }
}

JsonLines::~JsonLines() {
  ::close(file_);
}

void JsonLines::add(const Document& line) {
  const std::string text = line.dump() + '\n';
  const off_t before = ::lseek(file_, 0, SEEK_END);
  const ssize_t written = ::write(file_, text.data(), text.size());
  if (written == static_cast<ssize_t>(text.size())) return;
  const int problem = written < 0 ? errno : ENOSPC;
  if (written > 0 && before >= 0 && ::ftruncate(file_, before) != 0) {
    throw Error(ErrorCode::Io, path_.string() + ": ends with half a line");
  }
  throw Error(ErrorCode::Io, path_.string() + ": " + std::strerror(problem));
}

}  // namespace foresail::cli
