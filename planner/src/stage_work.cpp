#include "stage_work.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "foresail/base/error.h"
#include "layer_runs.h"
#include "recompute_order.h"

namespace foresail::planner {
namespace {

models::Split split_of(const Plan& plan) {
  models::Split split;
  split.tp = plan.layout.tp;
  split.cp = plan.layout.cp;
  split.sequence_parallel = plan.layout.sequence_parallel;
  split.microbatch_size = plan.layout.microbatch_size;
  split.sequence_length = plan.training.sequence_length;
  split.dtype = plan.training.precision;
  split.recompute = plan.layout.recompute.what;
  split.recompute_modules = plan.layout.recompute.modules;
  split.overlap_tp = plan.layout.overlap.tp;
  split.context_parallel = plan.layout.cp_kind;
  split.ep = plan.layout.ep;
  split.expert_tp = plan.layout.expert_tp();
  split.overlap_ep = plan.layout.overlap.ep;
  split.stack = plan.stack;
  return split;
}

/// Puts the gather of a sharded message in front of the pass that needs it.
std::vector<Kernel> with_input_gather(const Plan& plan, const std::vector<Kernel>& kernels) {
  std::vector<Kernel> list{input_gather(plan)};
  models::append(list, kernels);
  return list;
}

/// Shares of the experts of a layer; empty if all get equally many tokens.
std::vector<double> load_of(const Plan& plan, int layer) {
  const auto& rows = plan.training.expert_load;
  if (rows.size() < 2) return rows.empty() ? std::vector<double>{} : rows.front();
  std::size_t row = 0;
  for (int before = 0; before < layer; ++before) row += models::has_experts(plan.model, before);
  return rows[row];
}

/// Every kind of layer.
std::vector<models::Work> layer_works(const Plan& plan, const models::Split& split,
                                      const std::vector<int>& kinds) {
  std::vector<models::Work> works;
  const int count = 1 + *std::ranges::max_element(kinds);
  for (int kind = 0; kind < count; ++kind) {
    const auto first = static_cast<int>(std::ranges::find(kinds, kind) - kinds.begin());
    works.push_back(models::has_experts(plan.model, first)
                        ? models::expert_layer_work(plan.model, split, load_of(plan, first))
                        : models::layer_work(plan.model, split));
  }
  return works;
}

/// The parts that full recomputation of some layers, or of several together, is made of.
void add_checkpoint_parts(const Plan& plan, models::Split split, ModelParts& parts) {
  if (!has_pieces(plan.layout.recompute)) return;
  split.recompute = models::Recompute::None;
  parts.kept = layer_works(plan, split, parts.kind);
  add_checkpoint_groups(plan.layout.recompute, parts);
  for (std::size_t kind = 0; kind < parts.kept.size(); ++kind) {
    std::vector<Kernel>& again = parts.again.emplace_back(parts.kept[kind].forward);
    for (Kernel& kernel : again) kernel.name += ".recompute";
    // A layer's own recomputation stands in front of its backward.
    const std::vector<Kernel>& backward = parts.layers[kind].backward;
    const std::size_t own = backward.size() - parts.kept[kind].backward.size();
    parts.again_last.emplace_back(backward.begin(),
                                  backward.begin() + static_cast<std::ptrdiff_t>(own));
  }
}

/// Collects the parts of one chunk in the order in which a forward pass meets them.
class ChunkBuilder {
 public:
  explicit ChunkBuilder(KernelLists lists) : lists_(lists) {}
  void add(const models::Work& work, const models::RankParameters& parameters) {
    if (lists_ == KernelLists::Written) {
      models::append(chunk_.forward, work.forward);
      backward_.push_back(&work.backward);
    }
    hold(work, 1);
    own(parameters);
  }
  void add_layers(const Plan& plan, const StagePart& part, const ModelParts& parts) {
    for (const LayerRun& run : layer_runs(plan, part, parts)) hold(*run.work, run.count);
    for (int at = part.first_layer; at < part.end_layer; ++at) own(layer_parameters(plan, at));
    if (lists_ == KernelLists::LeftOut) return;
    for (int at = part.first_layer; at < part.end_layer; ++at) {
      models::append(chunk_.forward, parts.layer(at).forward);
    }
    const std::vector<BackwardPiece> order = backward_order(plan.layout, part);
    for (auto piece = order.rbegin(); piece != order.rend(); ++piece) {
      backward_.push_back(&kernels_of(*piece, parts));
    }
  }
  ChunkWork finish() {
    for (auto kernels = backward_.rbegin(); kernels != backward_.rend(); ++kernels) {
      models::append(chunk_.backward, **kernels);
    }
    return std::move(chunk_);
  }

 private:
  /// `count` equal parts. Those before a part hold what they saved; those behind it, in a backward
  /// pass, nothing but what a weight half needs.
  void hold(const models::Work& work, int count) {
    const Bytes forward = models::sum(work.forward_peak);
    const Bytes backward = models::sum(work.backward_peak);
    const Bytes saved = work.saved_bytes();
    const Bytes retained = work.retained_bytes();
    for (int part = 0; part < count; ++part) {
      const Bytes before = chunk_.saved;
      chunk_.forward_peak = std::max(chunk_.forward_peak, before + forward);
      chunk_.backward_peak = std::max(chunk_.backward_peak, before + backward);
      chunk_.input_peak = std::max(chunk_.input_peak + retained, before + backward);
      chunk_.saved += saved;
      chunk_.retained += retained;
    }
  }

  void own(const models::RankParameters& parameters) {
    chunk_.parameters += parameters.total();
    chunk_.replicated += parameters.replicated;
    chunk_.experts += parameters.experts;
  }

  static const std::vector<Kernel>& kernels_of(BackwardPiece piece, const ModelParts& parts) {
    const std::size_t kind = parts.kind_of(piece.layer);
    switch (piece.kind) {
      case BackwardPiece::Kind::Layer:
        break;
      case BackwardPiece::Kind::Kept:
        return parts.kept[kind].backward;
      case BackwardPiece::Kind::Again:
        return parts.again[kind];
      case BackwardPiece::Kind::AgainLast:
        return parts.again_last[kind];
    }
    return parts.layers[kind].backward;
  }

  KernelLists lists_;
  ChunkWork chunk_;
  std::vector<const std::vector<Kernel>*> backward_;  // the last runs first
};

}  // namespace

std::int64_t StageWork::parameters() const {
  std::int64_t sum = tied_parameters;
  for (const ChunkWork& chunk : chunks) sum += chunk.parameters;
  return sum;
}

std::int64_t StageWork::replicated() const {
  std::int64_t sum = 0;
  for (const ChunkWork& chunk : chunks) sum += chunk.replicated;
  return sum;
}

std::int64_t StageWork::experts() const {
  std::int64_t sum = 0;
  for (const ChunkWork& chunk : chunks) sum += chunk.experts;
  return sum;
}

Kernel input_gather(const Plan& plan) {
  Kernel gather;
  gather.kind = KernelKind::Collective;
  gather.name = "tp.gather_input";
  gather.dtype = storage_dtype(plan.training);
  gather.bytes = activation_bytes(plan);
  gather.collective = Collective::AllGather;
  gather.lane = Lane::Tp;
  return gather;
}

ModelParts model_parts(const Plan& plan) {
  const models::Split split = split_of(plan);
  ModelParts parts;
  parts.kind = layer_kinds(plan);
  parts.layers = layer_works(plan, split, parts.kind);
  parts.embedding = models::embedding_work(plan.model, split);
  parts.head = models::head_work(plan.model, split);
  add_checkpoint_parts(plan, split, parts);
  return parts;
}

std::vector<int> layer_kinds(const Plan& plan) {
  std::vector<int> kinds;
  std::vector<std::pair<bool, std::vector<double>>> known;
  for (int layer = 0; layer < plan.model.layers; ++layer) {
    const bool is_mixture = models::has_experts(plan.model, layer);
    std::pair<bool, std::vector<double>> key{is_mixture, {}};
    if (is_mixture) key.second = load_of(plan, layer);
    const auto at = std::ranges::find(known, key);
    kinds.push_back(static_cast<int>(at - known.begin()));
    if (at == known.end()) known.push_back(std::move(key));
  }
  return kinds;
}

models::RankParameters layer_parameters(const Plan& plan, int layer) {
  const Layout& layout = plan.layout;
  if (!models::has_experts(plan.model, layer)) {
    return models::layer_parameters(plan.model, layout.tp);
  }
  return models::expert_layer_parameters(plan.model, layout.tp, layout.ep, layout.expert_tp());
}

StageWork stage_work(const Plan& plan, int stage) {
  return stage_work(plan, stage, model_parts(plan), KernelLists::Written);
}

StageWork stage_work(const Plan& plan, int stage, const ModelParts& parts, KernelLists lists) {
  const int tp = plan.layout.tp;
  const bool has_bucket = has_embedding_bucket(plan);
  const int chunks = chunk_count(plan);
  StageWork work;
  bool has_matrix = false;  // the stage holds the embedding's, which a tied head may use
  for (int chunk = 0; chunk < chunks; ++chunk) {
    has_matrix = has_matrix || stage_part(plan, stage, chunk).has_embedding;
  }
  for (int chunk = 0; chunk < chunks; ++chunk) {
    const StagePart part = stage_part(plan, stage, chunk);
    ChunkBuilder builder(lists);
    if (part.has_embedding) {
      models::RankParameters owned = models::embedding_parameters(plan.model, tp);
      if (has_bucket) work.tied_parameters = std::exchange(owned.sharded, 0);
      builder.add(parts.embedding, owned);
    }
    builder.add_layers(plan, part, parts);
    if (part.has_head) {
      const bool has_copy = has_bucket && !has_matrix;
      models::RankParameters owned = models::head_parameters(plan.model, tp, has_copy);
      if (has_copy) work.tied_parameters = std::exchange(owned.sharded, 0);
      builder.add(parts.head, owned);
    }
    ChunkWork done = builder.finish();
    const bool is_written = lists == KernelLists::Written;
    if (is_written && has_input_gather(plan, program::Payload::Activation) && !part.has_embedding) {
      done.forward = with_input_gather(plan, done.forward);
    }
    if (is_written && has_input_gather(plan, program::Payload::Gradient) && !part.has_head) {
      done.backward = with_input_gather(plan, done.backward);
    }
    if (plan.layout.has_split_backward()) {
      models::SplitBackward split_up = models::split_backward(done.backward);
      done.backward_input = std::move(split_up.input);
      done.backward_weight = std::move(split_up.weight);
    }
    work.chunks.push_back(std::move(done));
  }
  return work;
}

bool has_embedding_bucket(const Plan& plan) {
  return plan.model.tied_embeddings && (plan.layout.pp > 1 || chunk_count(plan) > 1);
}

DType storage_dtype(const program::Training& training) {
  return training.precision == DType::Fp8 ? DType::Bf16 : training.precision;
}

int microbatch_count(const Plan& plan) {
  return static_cast<int>(plan.training.global_batch_size /
                          (plan.layout.microbatch_size * plan.layout.dp));
}

Schedule make_schedule(const Plan& plan) {
  if (plan.layout.schedule == ScheduleKind::File) return make_schedule(plan.layout.written);
  return make_schedule(plan.layout.schedule, {.stages = plan.layout.pp,
                                              .chunks = chunk_count(plan),
                                              .microbatches = microbatch_count(plan),
                                              .group_size = plan.layout.group_size});
}

int gradient_ranks(const Layout& layout) {
  return layout.dp * layout.cp;
}

int expert_gradient_ranks(const Plan& plan) {
  return plan.model.experts.count > 0 ? plan.layout.expert_dp() : 1;
}

int expert_shard_ranks(const Plan& plan) {
  const Layout& layout = plan.layout;
  if (!layout.has_copies_of_shards()) return expert_gradient_ranks(plan);
  const int groups = gradient_ranks(layout) / layout.shard_ranks();
  return std::max(1, expert_gradient_ranks(plan) / groups);
}

Bytes activation_bytes(const Plan& plan) {
  const std::int64_t tokens =
      plan.training.sequence_length * plan.layout.microbatch_size / plan.layout.cp;
  return Bytes(tokens * plan.model.hidden * size_of(storage_dtype(plan.training)));
}

Bytes message_bytes(const Plan& plan, program::Payload payload) {
  const std::int64_t whole = activation_bytes(plan).count();
  const bool is_shard = plan.layout.sequence_parallel || has_input_gather(plan, payload);
  const std::int64_t parts = is_shard ? plan.layout.tp : 1;
  return Bytes((whole + parts - 1) / parts);
}

bool has_input_gather(const Plan& plan, program::Payload payload) {
  return plan.layout.pp > 1 && plan.layout.tp > 1 && !plan.layout.sequence_parallel &&
         plan.stack.shards_messages(payload == program::Payload::Gradient);
}

}  // namespace foresail::planner
