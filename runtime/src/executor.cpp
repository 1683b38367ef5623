#include "executor.h"

#include "foresail/base/error.h"

namespace foresail::runtime {

using program::Op;
using program::OpId;

Executor::Executor(const program::Program& program, RankId rank, SpanLog& log)
    : program_(program), rank_(rank), log_(log) {
  const program::StageProgram& stage = program.of(rank);
  for (std::uint32_t i = 0; i < stage.ops.size(); ++i) {
    queues_[stage.ops[OpId{i}].lane].push_back(OpId{i});
  }
  for (const auto& [lane, queue] : queues_) threads_[lane] = std::make_unique<WorkerThread>();
}

void Executor::run_step(int step, const Hooks& hooks) {
  is_done_.assign(program_.of(rank_).ops.size(), 0);
  failure_ = nullptr;
  executed_.clear();
  for (const auto& [lane, queue] : queues_) executed_[lane].reserve(queue.size());
  std::vector<std::future<void>> ends;
  for (auto& [lane, thread] : threads_) {
    ends.push_back(thread->submit([this, lane, step, &hooks] { run_lane(lane, step, hooks); }));
  }
  for (std::future<void>& end : ends) end.get();
  if (failure_) std::rethrow_exception(failure_);
  executed_digest_ = digest_of_executed();
}

void Executor::run_lane(Lane lane, int step, const Hooks& hooks) {
  std::vector<OpId>& executed = executed_.at(lane);
  try {
    for (const OpId id : queues_.at(lane)) {
      const Op& op = program_.of(rank_).ops[id];
      if (!wait_for(op)) return;
      MeasuredSpan span;
      span.lane = static_cast<std::int32_t>(lane);
      span.op = id.value;
      span.step = step;
      span.bytes = op.bytes.count();
      span.start_ns = steady_ns();
      hooks.run(id);
      span.end_ns = steady_ns();
      log_.add(span);
      executed.push_back(id);
      finish(id);
    }
  } catch (...) {
    fail(hooks);
  }
}

bool Executor::wait_for(const Op& op) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] {
    if (failure_) return true;
    for (const OpId before : op.after) {
      if (!is_done_[before.value]) return false;
    }
    return true;
  });
  return !failure_;
}

void Executor::finish(OpId op) {
  {
    const std::scoped_lock lock(mutex_);
    is_done_[op.value] = 1;
  }
  changed_.notify_all();
}

void Executor::fail(const Hooks& hooks) {
  {
    const std::scoped_lock lock(mutex_);
    if (failure_) return;
    failure_ = std::current_exception();
  }
  changed_.notify_all();
  hooks.failed(failure_);
}

std::string Executor::digest_of_executed() const {
  std::map<Lane, std::size_t> next;
  program::ProgramDigest digest;
  const program::StageProgram& stage = program_.of(rank_);
  for (std::uint32_t i = 0; i < stage.ops.size(); ++i) {
    const Lane lane = stage.ops[OpId{i}].lane;
    const OpId executed = executed_.at(lane).at(next[lane]++);
    FORESAIL_EXPECT(executed == OpId{i});
    digest.add(program_, rank_, executed);
  }
  return digest.hex();
}

}  // namespace foresail::runtime
