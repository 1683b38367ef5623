// The rule that every pass runs once, in its order.
#include <fmt/format.h>

#include <string_view>
#include <vector>

#include "verify_rules.h"

namespace foresail::program {
namespace {

/// What a stage did so far with one (chunk, microbatch).
struct PassCount {
  int forward = 0, backward = 0, input = 0, weight = 0;
};

class PassCounter {
 public:
  PassCounter(const Program& program, int stage, Complaints& complaints)
      : program_(program),
        stage_(stage),
        global_(program.global_stages()),
        complaints_(complaints),
        counts_(static_cast<std::size_t>(program.chunks) *
                static_cast<std::size_t>(program.microbatches)) {}

  void add(const Op& op) {
    if (op.kind != OpKind::Compute || op.pass == Pass::Optimizer) return;
    if (op.chunk < 0 || op.chunk >= program_.chunks || op.microbatch < 0 ||
        op.microbatch >= program_.microbatches) {
      complain(op, fmt::format("is outside of {} chunks and {} microbatches", program_.chunks,
                               program_.microbatches));
      return;
    }
    PassCount& count = at(op.chunk, op.microbatch);
    if (op.pass == Pass::Forward) {
      ++count.forward;
    } else if (count.forward == 0) {
      complain(op, "stands before its forward pass");
    } else if (op.pass == Pass::BackwardWeight && count.input == 0) {
      complain(op, "stands before its backward_input");
    }
    count.backward += op.pass == Pass::Backward ? 1 : 0;
    count.input += op.pass == Pass::BackwardInput ? 1 : 0;
    count.weight += op.pass == Pass::BackwardWeight ? 1 : 0;
  }

  void finish() {
    for (int chunk = 0; chunk < program_.chunks; ++chunk) {
      for (int microbatch = 0; microbatch < program_.microbatches; ++microbatch) {
        const bool is_visited = global_.is_visited(chunk, microbatch, program_.microbatches);
        check(chunk, microbatch, at(chunk, microbatch), is_visited ? 1 : 0);
      }
    }
  }

 private:
  PassCount& at(int chunk, int microbatch) {
    return counts_[static_cast<std::size_t>(chunk) *
                       static_cast<std::size_t>(program_.microbatches) +
                   static_cast<std::size_t>(microbatch)];
  }
  void complain(const Op& op, const std::string& why) {
    complaints_.add(fmt::format("stage {} {} {}", stage_, describe(op), why));
  }
  /// `due`: 1, or 0 where the microbatch goes through another chunk.
  void check(int chunk, int microbatch, const PassCount& count, int due) {
    if (count.forward != due) {
      complaints_.add(fmt::format("stage {} chunk {} microbatch {}: {} forward passes, must be {}",
                                  stage_, chunk, microbatch, count.forward, due));
    }
    const bool is_whole = count.backward == due && count.input == 0 && count.weight == 0;
    const bool is_split = count.backward == 0 && count.input == due && count.weight == due;
    if (is_whole || is_split) return;
    const std::string_view wanted = due == 0 ? "0 of each" : "1, 0 and 0, or 0, 1 and 1";
    complaints_.add(fmt::format(
        "stage {} chunk {} microbatch {}: {} backward, {} backward_input and {} backward_weight, "
        "must be {}",
        stage_, chunk, microbatch, count.backward, count.input, count.weight, wanted));
  }

  const Program& program_;
  int stage_;
  GlobalStages global_;
  Complaints& complaints_;
  std::vector<PassCount> counts_;
};

}  // namespace

std::vector<std::string> check_passes(const Program& program) {
  Complaints complaints;
  int number = 0;
  for (const StageProgram& stage : program.stages) {
    PassCounter counter(program, number++, complaints);
    for (const Op& op : stage.ops) counter.add(op);
    counter.finish();
  }
  return complaints.take();
}

}  // namespace foresail::program
