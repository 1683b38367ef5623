#include "plans.h"

namespace foresail::planner {

models::Model plain_model(int layers) {
  models::Model model;
  model.name = "plain";
  model.layers = layers;
  model.hidden = 1024;
  model.heads = 8;
  model.kv_heads = 8;
  model.head_size = 128;
  model.ffn = 4096;
  model.vocab = 128;
  model.max_positions = 64;
  return model;
}

Plan plan_of(const models::Model& model, const Layout& layout, int microbatches) {
  Plan plan;
  plan.model = model;
  plan.layout = layout;
  plan.training.sequence_length = 64;
  plan.training.global_batch_size = layout.microbatch_size * layout.dp * microbatches;
  plan.cluster.name = "test";
  plan.cluster.node.devices = layout.world_size();
  plan.cluster.node.nics = 0;
  plan.cluster.nodes = 1;
  plan.cluster.device.name = "device";
  plan.cluster.device.memory = Bytes(80'000'000'000);
  plan.placement = program::Placement::identity(layout.world_size());
  return plan;
}

Layout pipeline(int p, int v, int group) {
  Layout layout;
  layout.pp = p;
  layout.v = v;
  if (v > 1) {
    layout.schedule = ScheduleKind::Interleaved;
    layout.group_size = group;
  }
  layout.overlap.pp = true;
  return layout;
}

}  // namespace foresail::planner
