#include "foresail/planner/live_memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "foresail/base/error.h"
#include "layer_runs.h"
#include "memory.h"
#include "stage_work.h"

namespace foresail::planner {
namespace {

using models::SavedTensor;
using program::LiveTensor;
using program::MemoryCategory;
using program::Moment;
using program::Op;
using program::OpId;
using program::OpKind;
using program::Pass;
using program::Payload;
using program::TensorGroup;

Moment start_of(OpId op) {
  return {Moment::Edge::Start, op};
}
Moment end_of(OpId op) {
  return {Moment::Edge::End, op};
}

/// A run of equal parts of a chunk: its layers, or one of the ends.
struct PartRun {
  std::string owner;
  const models::Work* work = nullptr;
  int count = 1;
  int first_layer = -1;
  int layers = 1;  ///< of each part
};

/// `layers` layers from `first` on.
std::string layer_names(int first, int layers) {
  return layers == 1 ? fmt::format("layer {}", first)
                     : fmt::format("layers {}-{}", first, first + layers - 1);
}

/// Whether a tensor of a part stays beyond the pass.
bool is_kept(const models::Work& work, const SavedTensor& tensor) {
  return std::ranges::any_of(work.saved,
                             [&](const SavedTensor& saved) { return saved.name == tensor.name; });
}

class ChunkTensors {
 public:
  ChunkTensors(const Plan& plan, const StagePart& part, const ModelParts& parts) {
    if (part.has_embedding) runs_.push_back({"embedding", &parts.embedding, 1, -1});
    for (const LayerRun& run : layer_runs(plan, part, parts)) {
      runs_.push_back({layer_names(run.first_layer, run.count * run.layers), run.work, run.count,
                       run.first_layer, run.layers});
    }
    if (part.has_head) runs_.push_back({"head", &parts.head, 1, -1});
  }

  TensorGroup saved() const { return all(&models::Work::saved); }
  TensorGroup retained() const { return all(&models::Work::retained); }
  TensorGroup forward() const { return fullest(&models::Work::forward_peak, false); }
  TensorGroup backward() const { return fullest(&models::Work::backward_peak, false); }
  TensorGroup input_half() const { return fullest(&models::Work::backward_peak, true); }

 private:
  using List = std::vector<SavedTensor> models::Work::*;

  TensorGroup all(List list) const {
    TensorGroup group;
    for (const PartRun& run : runs_) add(group, run, run.count, list, MemoryCategory::Activations);
    return group;
  }

  static void add(TensorGroup& group, const PartRun& run, int count, List list,
                  MemoryCategory category) {
    if (count == 0) return;
    for (const SavedTensor& tensor : run.work->*list) {
      group.tensors.push_back({category, run.owner, tensor.name, count * tensor.bytes});
    }
  }

  /// The fullest moment of a pass: it has come to one part, those before it hold what they saved,
  /// those behind it nothing, or in an input half what the weight half needs.
  TensorGroup fullest(List list, bool keeps_retained) const {
    TensorGroup best;
    for (std::size_t at = 0; at < runs_.size(); ++at) {
      // Of equal layers the last before the next run, or the first, has most beside it.
      for (const int place : {0, runs_[at].count - 1}) {
        TensorGroup group = at_part(at, place, list, keeps_retained);
        if (group.bytes() > best.bytes()) best = std::move(group);
      }
    }
    return best;
  }

  TensorGroup at_part(std::size_t at, int place, List list, bool keeps_retained) const {
    TensorGroup group;
    for (std::size_t i = 0; i < runs_.size(); ++i) {
      const int before = i < at ? runs_[i].count : (i == at ? place : 0);
      const int behind = i > at ? runs_[i].count : (i == at ? runs_[i].count - place - 1 : 0);
      add(group, runs_[i], before, &models::Work::saved, MemoryCategory::Activations);
      if (keeps_retained) {
        add(group, runs_[i], behind, &models::Work::retained, MemoryCategory::Activations);
      }
    }
    const PartRun& here = runs_[at];
    const std::string owner =
        here.first_layer < 0 ? here.owner
                             : layer_names(here.first_layer + place * here.layers, here.layers);
    for (const SavedTensor& tensor : here.work->*list) {
      const bool stays = is_kept(*here.work, tensor);
      group.tensors.push_back({stays ? MemoryCategory::Activations : MemoryCategory::Buffers,
                               stays ? here.owner : owner, tensor.name, tensor.bytes});
    }
    return group;
  }

  std::vector<PartRun> runs_;
};

class StageTensors {
 public:
  StageTensors(const Plan& plan, const program::Program& program, int stage)
      : plan_(plan),
        ops_(program.stages[static_cast<std::size_t>(stage)].ops),
        stage_(stage),
        parts_(model_parts(plan)) {}

  program::StageMemory finish() && {
    add_states();
    for (int chunk = 0; chunk < chunk_count(plan_); ++chunk) add_chunk(chunk);
    add_messages();
    return std::move(memory_);
  }

 private:
  void reside(MemoryCategory category, std::string name, Bytes bytes) {
    if (bytes > Bytes{}) memory_.resident.push_back({category, "rank", std::move(name), bytes});
  }

  void add_states() {
    const program::MemoryNeed states = state_need(plan_, stage_work(plan_, stage_));
    reside(MemoryCategory::Parameters, "parameters", states.parameters);
    reside(MemoryCategory::Gradients, "gradients", states.gradients);
    reside(MemoryCategory::Optimizer, "optimizer states", states.optimizer);
    reside(MemoryCategory::Buffers, "buckets of sharded states", states.buffers);
  }

  std::size_t add_group(TensorGroup group) {
    memory_.groups.push_back(std::move(group));
    return memory_.groups.size() - 1;
  }
  void live(std::size_t group, Moment born, Moment dies) {
    memory_.lives.push_back({group, born, dies});
  }

  /// The passes of one chunk, each with its own fullest moment, and between them what stays.
  void add_chunk(int chunk) {
    const ChunkTensors tensors(plan_, stage_part(plan_, stage_, chunk), parts_);
    const std::size_t saved = add_group(tensors.saved());
    const std::size_t retained = add_group(tensors.retained());
    std::map<Pass, std::size_t> fullest{{Pass::Forward, add_group(tensors.forward())},
                                        {Pass::Backward, add_group(tensors.backward())},
                                        {Pass::BackwardInput, add_group(tensors.input_half())}};
    std::map<int, OpId> forward, input;  // by microbatch
    for (std::uint32_t i = 0; i < ops_.size(); ++i) {
      const OpId id{i};
      const Op& op = ops_[id];
      if (op.kind != OpKind::Compute || op.pass == Pass::Optimizer || op.chunk != chunk) continue;
      if (op.pass != Pass::BackwardWeight) live(fullest.at(op.pass), start_of(id), end_of(id));
      if (op.pass == Pass::Forward) {
        forward[op.microbatch] = id;
      } else if (op.pass == Pass::BackwardWeight) {
        live(retained, end_of(input.at(op.microbatch)), end_of(id));
      } else {
        live(saved, end_of(forward.at(op.microbatch)), start_of(id));
        if (op.pass == Pass::BackwardInput) input[op.microbatch] = id;
      }
    }
  }

  /// The pass that waits for a message.
  std::map<OpId, OpId> consumers() const {
    std::map<OpId, OpId> found;
    for (std::uint32_t i = 0; i < ops_.size(); ++i) {
      if (ops_[OpId{i}].kind != OpKind::Compute) continue;
      for (const OpId before : ops_[OpId{i}].after) {
        if (ops_[before].kind == OpKind::Recv) found[before] = OpId{i};
      }
    }
    return found;
  }

  /// A received activation becomes the input that its pass saves; a received gradient stays until
  /// the end of its pass. What is sent stays from the end of its pass to the end of the transfer.
  void add_messages() {
    const std::map<OpId, OpId> consumer = consumers();
    for (std::uint32_t i = 0; i < ops_.size(); ++i) {
      const OpId id{i};
      const Op& op = ops_[id];
      if (op.kind != OpKind::Send && op.kind != OpKind::Recv) continue;
      const bool is_received = op.kind == OpKind::Recv;
      const std::string name =
          fmt::format("{} {}", is_received ? "received" : "sent",
                      op.payload == Payload::Gradient ? "gradient" : "activation");
      const std::size_t group = message_group(name, op.bytes);
      if (!is_received) {
        live(group, end_of(op.after.front()), end_of(id));
      } else if (op.payload == Payload::Gradient) {
        live(group, start_of(id), end_of(consumer.at(id)));
      } else {
        live(group, start_of(id), start_of(consumer.at(id)));
      }
    }
  }

  std::size_t message_group(const std::string& name, Bytes bytes) {
    const auto [known, is_new] = message_groups_.try_emplace(name, 0);
    if (is_new) {
      known->second = add_group({{{MemoryCategory::Buffers, "messages", name, bytes}}});
    }
    return known->second;
  }

  const Plan& plan_;
  const IdVector<OpId, Op>& ops_;
  int stage_;
  ModelParts parts_;
  program::StageMemory memory_;
  std::map<std::string, std::size_t> message_groups_;
};

}  // namespace

program::StageMemory live_memory(const Plan& plan, const program::Program& program, int stage) {
  FORESAIL_EXPECT(stage >= 0 && stage < plan.layout.pp);
  return StageTensors(plan, program, stage).finish();
}

}  // namespace foresail::planner
