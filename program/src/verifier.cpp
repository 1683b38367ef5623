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
  FORESAIL_EXPECT(
      GlobalStages::is_possible(program.stage_map, stages, program.chunks, program.microbatches));
  for (const Communicator& communicator : program.communicators) {
    for (const int stage : communicator.stages) FORESAIL_EXPECT(stage >= 0 && stage < stages);
    if (communicator.cut.kind == Cut::Kind::None) continue;
    FORESAIL_EXPECT(!communicator.axes.has(Axis::Pp));
    FORESAIL_EXPECT(communicator.cut.size > 0);
    FORESAIL_EXPECT(axes_size(program, communicator) % communicator.cut.size == 0);
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

}  // namespace

int axes_size(const Program& program, const Communicator& communicator) {
  int members = 1;
  for (const auto& entry : kNames<Axis>) {
    if (communicator.axes.has(entry.value)) {
      members *= program.grid_of(communicator).size(entry.value);
    }
  }
  return members;
}

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
