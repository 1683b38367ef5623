/// \file
/// Where the threads of a rank note what they do, so that another can see what does not end.
#pragma once

#include <map>
#include <mutex>
#include <optional>

#include "foresail/program/program.h"
#include "foresail/runtime/activity.h"

namespace foresail::runtime {

class ActivityBoard {
 public:
  void begin_step(int step);
  void end_step();
  /// The op that a lane runs.
  void enter(Lane lane, program::OpId op);
  void leave(Lane lane);
  /// The kernel, no collective, that the Compute op runs, by its index.
  void enter_kernel(std::size_t kernel);
  void leave_kernel();

  Activity look(const program::Program& program, RankId rank) const;

 private:
  template <class Change>
  void note(const Change& change);

  mutable std::mutex mutex_;
  std::int64_t moved_ns_ = 0;
  int step_ = 0;
  bool is_in_step_ = false;
  std::map<Lane, program::OpId> running_;
  std::optional<std::size_t> kernel_;
};

/// The calling thread runs a kernel, until this goes.
class BoardKernel {
 public:
  /// `board` may be null.
  BoardKernel(ActivityBoard* board, std::size_t kernel) : board_(board) {
    if (board_ != nullptr) board_->enter_kernel(kernel);
  }
  ~BoardKernel() {
    if (board_ != nullptr) board_->leave_kernel();
  }
  BoardKernel(const BoardKernel&) = delete;
  BoardKernel& operator=(const BoardKernel&) = delete;

 private:
  ActivityBoard* board_;
};

}  // namespace foresail::runtime
