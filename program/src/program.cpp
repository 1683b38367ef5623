#include "foresail/program/program.h"

#include <fmt/format.h>

#include <algorithm>

#include "foresail/base/digest.h"
#include "foresail/base/error.h"

namespace foresail::program {
namespace {

/// Index into `stages` of the class that `rank` belongs to.
std::size_t stage_of(const Program& program, RankId rank) {
  return static_cast<std::size_t>(
      program.grid.coordinates(rank)[static_cast<std::size_t>(Axis::Pp)]);
}

bool has_stage(const Communicator& communicator, int stage) {
  return communicator.stages.empty() ||
         std::ranges::find(communicator.stages, stage) != communicator.stages.end();
}

std::string list_of(const std::vector<RankId>& ranks) {
  std::string list;
  for (const RankId rank : ranks) {
    if (!list.empty()) list += ',';
    list += std::to_string(rank.value);
  }
  return list;
}

/// What `describe` leaves out and a rank must agree on with its peers and its model.
std::string substituted(const Program& program, RankId rank, const Op& op) {
  switch (op.kind) {
    case OpKind::Compute: {
      FORESAIL_EXPECT(op.kernels.value < program.kernel_lists.size());
      return fmt::format("kernels {}", program.kernel_lists[op.kernels.value].name);
    }
    case OpKind::Send:
    case OpKind::Recv:
      return fmt::format("rank {} bytes {} dtype {}", program.peer(rank, op.peer_stage).value,
                         op.bytes.count(), to_string(op.dtype));
    case OpKind::Collective:
      return fmt::format("ranks {} bytes {} dtype {}",
                         list_of(program.members(op.communicator, rank)), op.bytes.count(),
                         to_string(op.dtype));
    case OpKind::Host:
      return "local";
  }
  return "?";
}

}  // namespace

std::vector<RankId> part_of(const Cut& cut, std::vector<RankId> members, RankId rank) {
  if (cut.kind == Cut::Kind::None) return members;
  FORESAIL_EXPECT(cut.size > 0);
  const auto size = static_cast<std::size_t>(cut.size);
  FORESAIL_EXPECT(members.size() % size == 0);
  const auto found = std::ranges::find(members, rank);
  FORESAIL_EXPECT(found != members.end());
  const auto place = static_cast<std::size_t>(found - members.begin());
  const bool is_within = cut.kind == Cut::Kind::Within;
  std::vector<RankId> part;
  for (std::size_t at = 0; at < members.size(); ++at) {
    const bool is_in = is_within ? at / size == place / size : at % size == place % size;
    if (is_in) part.push_back(members[at]);
  }
  return part;
}

const StageProgram& Program::of(RankId rank) const {
  const std::size_t stage = stage_of(*this, rank);
  FORESAIL_EXPECT(stage < stages.size());
  return stages[stage];
}

std::vector<RankId> Program::members(CommunicatorId communicator, RankId rank) const {
  FORESAIL_EXPECT(communicator.value < communicators.size());
  const Communicator& chosen = communicators[communicator.value];
  if (!has_stage(chosen, static_cast<int>(stage_of(*this, rank)))) return {};
  std::vector<RankId> members = grid_of(chosen).group(rank, chosen.axes);
  std::erase_if(members, [&](RankId member) {
    return !has_stage(chosen, static_cast<int>(stage_of(*this, member)));
  });
  return part_of(chosen.cut, std::move(members), rank);
}

RankId Program::peer(RankId rank, int peer_stage) const {
  Coordinates at = grid.coordinates(rank);
  at[static_cast<std::size_t>(Axis::Pp)] = peer_stage;
  return grid.rank(at);
}

const RankGrid& Program::grid_of(const Communicator& communicator) const {
  if (communicator.grid == GridKind::Dense) return grid;
  FORESAIL_EXPECT(expert_grid.has_value());
  return *expert_grid;
}

std::string_view communicator_of(const Kernel& kernel) {
  if (kernel.lane != Lane::Ep) return to_string(kernel.lane);
  const std::string_view name = kernel.name;
  return name.substr(0, name.find('.'));
}

GlobalStages Program::global_stages() const {
  return {stage_map, grid.size(Axis::Pp), chunks};
}

std::string describe(const Op& op) {
  std::string line;
  switch (op.kind) {
    case OpKind::Compute:
      line = fmt::format("compute {}", to_string(op.pass));
      break;
    case OpKind::Send:
    case OpKind::Recv:
      line = fmt::format("{} {}", to_string(op.kind), to_string(op.payload));
      break;
    case OpKind::Collective:
      line = fmt::format("{} {}", to_string(op.collective), to_string(op.payload));
      break;
    case OpKind::Host:
      line = fmt::format("host {}", to_string(op.host));
      break;
  }
  if (op.chunk >= 0) line += fmt::format(" chunk {}", op.chunk);
  if (op.microbatch >= 0) line += fmt::format(" microbatch {}", op.microbatch);
  if (op.kind == OpKind::Send) line += fmt::format(" to stage {}", op.peer_stage);
  if (op.kind == OpKind::Recv) line += fmt::format(" from stage {}", op.peer_stage);
  return line;
}

void ProgramDigest::add(const Program& program, RankId rank, OpId op) {
  const StageProgram& stage = program.of(rank);
  FORESAIL_EXPECT(op.value < stage.ops.size());
  const Op& added = stage.ops[op];
  lines_ += fmt::format("{} {} lane {} {}\n", op.value, describe(added), to_string(added.lane),
                        substituted(program, rank, added));
}

std::string ProgramDigest::hex() const {
  return sha256(lines_);
}

std::string program_digest(const Program& program) {
  return sha256(to_text(program));
}

bool operator==(const StageProgram& a, const StageProgram& b) {
  return std::ranges::equal(a.ops, b.ops);
}

bool operator==(const Program& a, const Program& b) {
  return a.grid == b.grid && a.expert_grid == b.expert_grid && a.chunks == b.chunks &&
         a.stage_map == b.stage_map && a.microbatches == b.microbatches &&
         a.communicators == b.communicators && a.kernel_lists == b.kernel_lists &&
         std::ranges::equal(a.stages, b.stages) && a.memory == b.memory &&
         a.memory_limit == b.memory_limit;
}

}  // namespace foresail::program
