#include "executor.h"

#include "foresail/base/error.h"

namespace foresail::runtime {

using program::Op;
using program::OpId;

Executor::Executor(const program::Program& program, RankId rank, SpanLog& log, Device& device)
    : program_(program), rank_(rank), log_(log), device_(device) {
  const program::StageProgram& stage = program.of(rank);
  for (std::uint32_t i = 0; i < stage.ops.size(); ++i) {
    queues_[stage.ops[OpId{i}].lane].push_back(OpId{i});
  }
  for (const auto& [lane, queue] : queues_) threads_[lane] = std::make_unique<WorkerThread>(device);
}

void Executor::run_step(int step, const Hooks& hooks) {
  is_done_.assign(program_.of(rank_).ops.size(), 0);
  ends_.assign(is_done_.size(), {});
  failure_ = nullptr;
  executed_.clear();
  for (const auto& [lane, queue] : queues_) executed_[lane].reserve(queue.size());
  std::vector<std::future<void>> ends;
  for (auto& [lane, thread] : threads_) {
    ends.push_back(thread->submit([this, lane, step, &hooks] { run_lane(lane, step, hooks); }));
  }
  for (std::future<void>& end : ends) end.get();
  if (failure_) std::rethrow_exception(failure_);
  for (const auto& [lane, ops] : executed_) device_.passed_ns(ends_[ops.back().value]);
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
      board_.enter(lane, id);
      const Mark start = device_.mark();
      hooks.run(id);
      const Mark end = device_.mark();
      board_.leave(lane);
      log_.add(span, start, end);
      executed.push_back(id);
      finish(id, end);
    }
  } catch (...) {
    fail(hooks);
  }
}

bool Executor::wait_for(const Op& op) {
  std::vector<Mark> ends;
  {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] {
      if (failure_) return true;
      for (const OpId before : op.after) {
        if (!is_done_[before.value]) return false;
      }
      return true;
    });
    if (failure_) return false;
    for (const OpId before : op.after) ends.push_back(ends_[before.value]);
  }
  for (const Mark& end : ends) device_.follow(end);
  return true;
}

void Executor::finish(OpId op, const Mark& end) {
  {
    const std::scoped_lock lock(mutex_);
    is_done_[op.value] = 1;
    ends_[op.value] = end;
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
