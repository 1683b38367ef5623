#include "foresail/program/verifier.h"

#include <fmt/format.h>

#include <algorithm>

#include "foresail/base/error.h"
#include "foresail/base/quantity.h"
#include "verify_rules.h"

namespace foresail::program {
namespace {

using Rule = Violation::Rule;

/// Contracts of the type, not rules for schedules: every id and coordinate points at something.
void expect_well_formed(const Program& program) {
  const int stages = program.grid.size(Axis::Pp);
  FORESAIL_EXPECT(program.stages.size() == static_cast<std::size_t>(stages));
  FORESAIL_EXPECT(program.memory.empty() || program.memory.size() == program.stages.size());
  for (const Communicator& communicator : program.communicators) {
    for (const int stage : communicator.stages) FORESAIL_EXPECT(stage >= 0 && stage < stages);
  }
  for (const StageProgram& stage : program.stages) {
    for (const Op& op : stage.ops) {
      const bool is_message = op.kind == OpKind::Send || op.kind == OpKind::Recv;
      FORESAIL_EXPECT(!is_message || (op.peer_stage >= 0 && op.peer_stage < stages));
      FORESAIL_EXPECT(op.kind != OpKind::Collective ||
                      op.communicator.value < program.communicators.size());
      for (const OpId id : op.after) FORESAIL_EXPECT(id.value < stage.ops.size());
    }
  }
}

/// What a stage did so far with one (chunk, microbatch).
struct PassCount {
  int forward = 0, backward = 0, input = 0, weight = 0;
};

class PassCounter {
 public:
  PassCounter(const Program& program, int stage, Complaints& complaints)
      : program_(program),
        stage_(stage),
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
        check(chunk, microbatch, at(chunk, microbatch));
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
  void check(int chunk, int microbatch, const PassCount& count) {
    if (count.forward != 1) {
      complaints_.add(fmt::format("stage {} chunk {} microbatch {}: {} forward passes, must be 1",
                                  stage_, chunk, microbatch, count.forward));
    }
    const bool is_whole = count.backward == 1 && count.input == 0 && count.weight == 0;
    const bool is_split = count.backward == 0 && count.input == 1 && count.weight == 1;
    if (!is_whole && !is_split) {
      complaints_.add(fmt::format(
          "stage {} chunk {} microbatch {}: {} backward, {} backward_input and {} backward_weight, "
          "must be 1, 0 and 0, or 0, 1 and 1",
          stage_, chunk, microbatch, count.backward, count.input, count.weight));
    }
  }

  const Program& program_;
  int stage_;
  Complaints& complaints_;
  std::vector<PassCount> counts_;
};

}  // namespace

std::vector<int> stages_of(const Program& program, const Communicator& communicator) {
  std::vector<int> stages = communicator.stages;
  if (stages.empty()) {
    for (int stage = 0; stage < program.grid.size(Axis::Pp); ++stage) stages.push_back(stage);
  }
  std::ranges::sort(stages);
  stages.erase(std::unique(stages.begin(), stages.end()), stages.end());
  return stages;
}

bool is_coupling(const Program& program, const Communicator& communicator) {
  return communicator.axes.has(Axis::Pp) && stages_of(program, communicator).size() > 1;
}

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

std::vector<std::string> check_memory(const Program& program) {
  Complaints complaints;
  if (program.memory_limit <= Bytes{}) return {};
  for (std::size_t stage = 0; stage < program.memory.size(); ++stage) {
    const MemoryNeed& need = program.memory[stage];
    if (need.peak() <= program.memory_limit) continue;
    complaints.add(fmt::format(
        "stage {} needs {} of {}: parameters {}, gradients {}, optimizer {}, activations {}, "
        "buffers {}",
        stage, to_text(need.peak()), to_text(program.memory_limit), to_text(need.parameters),
        to_text(need.gradients), to_text(need.optimizer), to_text(need.activations),
        to_text(need.buffers)));
  }
  return complaints.take();
}

std::vector<Violation> verify(const Program& program) {
  expect_well_formed(program);
  std::vector<Violation> violations;
  const auto add = [&](Rule rule, std::vector<std::string> messages) {
    for (std::string& message : messages) violations.push_back({rule, std::move(message)});
  };
  add(Rule::PassesOnce, check_passes(program));
  add(Rule::MessagesMatch, check_messages(program));
  add(Rule::CollectiveOrder, check_collectives(program));
  add(Rule::Rendezvous, check_rendezvous(program));
  add(Rule::Memory, check_memory(program));
  add(Rule::GradientsOnce, check_gradients(program));
  return violations;
}

}  // namespace foresail::program
