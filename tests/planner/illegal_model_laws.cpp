// How the model, its stages and its states are split.
#include <algorithm>
#include <numeric>
#include <set>
#include <utility>

#include "illegal_cases.h"

namespace foresail::planner::illegal {
namespace {

using program::Axis;

std::int64_t parts(const Case& c) {
  return std::int64_t{c.layout.pp} * chunks(c);
}
std::int64_t counted(const Case& c) {
  return c.model.layers + c.layout.stages.account_for_embedding + c.layout.stages.account_for_loss;
}
bool has_list(const Case& c) {
  return c.layout.pp > 1 && !c.layout.stages.each.empty();
}
bool has_ends(const Case& c) {
  return c.layout.pp > 1 && c.layout.stages.each.empty() &&
         (c.layout.stages.first > 0 || c.layout.stages.last > 0);
}
bool accounts(const Case& c) {
  return c.layout.stages.account_for_embedding || c.layout.stages.account_for_loss;
}
int others(const Case& c) {
  return c.layout.pp - (c.layout.stages.first > 0) - (c.layout.stages.last > 0);
}
int rest(const Case& c) {
  return c.model.layers - c.layout.stages.first - c.layout.stages.last;
}
bool has_room(const Case& c) {
  return others(c) == 0 ? rest(c) == 0 : rest(c) >= others(c) * chunks(c);
}
bool is_shard_divisor(const Case& c) {
  return c.layout.shard_size >= 2 && shard_ranks(c) % c.layout.shard_size == 0;
}
int inner_width(const Case& c) {
  for (const Axis axis : c.layout.rank_order) {
    if (axis == Axis::Dp) return c.layout.dp;
    if (axis == Axis::Cp) return c.layout.cp;
  }
  return 1;
}

std::vector<Law> laws_of_degrees() {
  return {{"world_size",
           [](const Case& c) {
             return c.layout.tp * c.layout.cp * c.layout.pp * c.layout.dp != c.devices;
           },
           [](const Case& c) {
             return Terms{c.layout.tp, c.layout.cp, c.layout.pp, c.layout.dp, c.devices};
           },
           [](Case& c, Draw& draw) { c.devices += draw.between(1, 9); }},
          {"rank_order",
           [](const Case& c) {
             return std::set(c.layout.rank_order.begin(), c.layout.rank_order.end()).size() < 5;
           },
           [](const Case&) { return Terms{}; },
           [](Case& c, Draw& draw) { c.layout.rank_order[draw.coin() ? 3 : 4] = Axis::Tp; }},
          {"ep_needs_experts", [](const Case& c) { return c.layout.ep != 1; },
           [](const Case& c) { return Terms{c.layout.ep}; },
           [](Case& c, Draw& draw) { c.layout.ep = draw.between(2, 9); }},
          {"zero_stage",
           [](const Case& c) { return c.layout.zero_stage < 0 || c.layout.zero_stage > 3; },
           [](const Case& c) { return Terms{c.layout.zero_stage}; },
           [](Case& c, Draw& draw) {
             c.layout.zero_stage = draw.of({4, 5, 7});
           }}};
}

std::vector<Law> laws_of_splits() {
  return {{"heads_by_tp", [](const Case& c) { return c.model.heads % c.layout.tp != 0; },
           [](const Case& c) {
             return Terms{c.model.heads, c.layout.tp, c.model.heads % c.layout.tp};
           },
           [](Case& c, Draw& draw) { c.model.heads += draw.part_of(c.layout.tp); }},
          {"kv_heads_by_tp", [](const Case& c) { return c.model.kv_heads % c.layout.tp != 0; },
           [](const Case& c) {
             return Terms{c.model.kv_heads, c.layout.tp, c.model.kv_heads % c.layout.tp};
           },
           [](Case& c, Draw& draw) { c.model.kv_heads += draw.part_of(c.layout.tp); }},
          {"ffn_by_tp", [](const Case& c) { return c.model.ffn % c.layout.tp != 0; },
           [](const Case& c) {
             return Terms{c.model.ffn, c.layout.tp, c.model.ffn % c.layout.tp};
           },
           [](Case& c, Draw& draw) { c.model.ffn += draw.part_of(c.layout.tp); }}};
}

std::vector<Law> laws_of_sizes() {
  return {{"layers_max", [](const Case& c) { return c.model.layers > 2000; },
           [](const Case& c) {
             return Terms{c.model.layers, 2000};
           },
           [](Case& c, Draw& draw) { c.model.layers = 2000 + 8 * draw.between(1, 9); }},
          {"width_max", [](const Case& c) { return c.model.vocab > 4194304; },
           [](const Case& c) {
             return Terms{c.model.vocab, 4194304};
           },
           [](Case& c, Draw& draw) { c.model.vocab = 4194304 + draw.between(1, 999); }},
          {"activations_max",
           [](const Case& c) { return c.training.sequence_length >= std::int64_t{1} << 36; },
           [](const Case& c) {
             return Terms{c.model.layers, c.training.sequence_length};
           },
           [](Case& c, Draw& draw) {
             c.training.sequence_length = std::int64_t{1} << draw.between(36, 39);
           }}};
}

std::vector<Law> laws_of_sharding() {
  return {{"shard_size_needs_zero",
           [](const Case& c) { return c.layout.shard_size > 0 && c.layout.zero_stage == 0; },
           [](const Case& c) { return Terms{c.layout.shard_size}; },
           [](Case& c, Draw&) {
             c.layout.zero_stage = 0;
             c.layout.shard_size = shard_ranks(c);
           }},
          {"shard_size_min", [](const Case& c) { return c.layout.shard_size == 1; },
           [](const Case&) {
             return Terms{1, 2};
           },
           [](Case& c, Draw&) { c.layout.shard_size = 1; }},
          {"ranks_by_shard_size",
           [](const Case& c) { return c.layout.shard_size > 1 && !is_shard_divisor(c); },
           [](const Case& c) {
             return Terms{c.layout.dp, c.layout.cp, shard_ranks(c), c.layout.shard_size,
                          shard_ranks(c) % c.layout.shard_size};
           },
           [](Case& c, Draw& draw) { c.layout.shard_size = shard_ranks(c) + draw.between(1, 9); }},
          {"shard_size_by_inner_axis",
           [](const Case& c) {
             return is_shard_divisor(c) && c.layout.shard_size % inner_width(c) != 0 &&
                    inner_width(c) % c.layout.shard_size != 0;
           },
           [](const Case& c) {
             return Terms{c.layout.shard_size, inner_width(c)};
           },
           [](Case& c, Draw& draw) {
             c.layout.cp = 4;
             c.layout.dp = 3 * draw.between(1, 2);
             c.devices = c.layout.world_size();
             c.training.global_batch_size = 16 * c.layout.dp;
             c.layout.shard_size = 6;
           }}};
}

std::vector<Law> laws_of_stage_lists() {
  return {{"stages_need_pp",
           [](const Case& c) { return c.layout.pp == 1 && !c.layout.stages.is_even(); },
           [](const Case&) { return Terms{1}; },
           [](Case& c, Draw& draw) {
             c.layout.pp = 1;
             c.layout.v = 1;
             c.layout.schedule = ScheduleKind::Gpipe;
             c.devices = c.layout.world_size();
             c.layout.stages.account_for_loss = draw.coin();
             c.layout.stages.first = c.layout.stages.account_for_loss ? 0 : draw.between(1, 5);
           }},
          {"stages_count",
           [](const Case& c) {
             return has_list(c) && std::cmp_not_equal(c.layout.stages.each.size(), parts(c));
           },
           [](const Case& c) {
             return Terms{static_cast<std::int64_t>(c.layout.stages.each.size()), parts(c)};
           },
           [](Case& c, Draw& draw) {
             const int count = static_cast<int>(parts(c)) + draw.between(1, 3);
             c.layout.stages.each.assign(static_cast<std::size_t>(count), 1);
             c.layout.stages.each.back() += c.model.layers - count;
           }},
          {"stages_min",
           [](const Case& c) {
             const auto& each = c.layout.stages.each;
             if (!has_list(c)) return false;
             return each.front() < 0 || each.back() < 0 ||
                    (each.size() > 2 &&
                     std::any_of(each.begin() + 1, each.end() - 1, [](int n) { return n < 1; }));
           },
           [](const Case&) { return Terms{0}; },
           [](Case& c, Draw& draw) {
             auto& each = c.layout.stages.each;
             each.assign(static_cast<std::size_t>(parts(c)), 1);
             each[static_cast<std::size_t>(draw.part_of(static_cast<int>(parts(c)) - 1))] = 0;
             each.back() += c.model.layers - std::accumulate(each.begin(), each.end(), 0);
           }},
          {"stages_sum",
           [](const Case& c) {
             const auto& each = c.layout.stages.each;
             return has_list(c) && std::accumulate(each.begin(), each.end(), 0) != c.model.layers;
           },
           [](const Case& c) {
             const auto& each = c.layout.stages.each;
             return Terms{std::accumulate(each.begin(), each.end(), 0), c.model.layers};
           },
           [](Case& c, Draw& draw) {
             c.layout.stages.each.assign(static_cast<std::size_t>(parts(c)), draw.between(3, 9));
           }}};
}

std::vector<Law> laws_of_stage_forms() {
  return {
      {"stages_one_form", [](const Case& c) { return has_ends(c) && accounts(c); },
       [](const Case& c) { return Terms{std::max(c.layout.stages.first, c.layout.stages.last)}; },
       [](Case& c, Draw& draw) {
         (draw.coin() ? c.layout.stages.first : c.layout.stages.last) = draw.between(1, 9);
         (draw.coin() ? c.layout.stages.account_for_loss : c.layout.stages.account_for_embedding) =
             true;
       }},
      {"layers_by_stages",
       [](const Case& c) {
         return !has_list(c) && !has_ends(c) && (c.layout.pp > 1 || c.layout.stages.is_even()) &&
                counted(c) % parts(c) != 0;
       },
       [](const Case& c) {
         return Terms{c.model.layers, c.layout.pp, counted(c) % parts(c)};
       },
       [](Case& c, Draw& draw) {
         if (draw.coin()) {
           c.model.layers += draw.part_of(static_cast<int>(parts(c)));
         } else {
           c.layout.stages.account_for_embedding = true;
         }
       }},
      {"middle_layers", [](const Case& c) { return has_ends(c) && !accounts(c) && !has_room(c); },
       [](const Case& c) {
         return Terms{c.model.layers, rest(c)};
       },
       [](Case& c, Draw& draw) {
         c.layout.stages.first = chunks(c) * draw.between(1, 3);
         c.layout.stages.last = chunks(c) * (c.model.layers / chunks(c) - draw.between(1, 3));
       }}};
}

std::vector<Law> laws_of_stage_ends() {
  return {
      {"middle_layers_by_stages",
       [](const Case& c) {
         return has_ends(c) && !accounts(c) && has_room(c) && others(c) > 0 &&
                rest(c) % (others(c) * chunks(c)) != 0;
       },
       [](const Case& c) {
         return Terms{c.model.layers, rest(c), others(c), rest(c) % (others(c) * chunks(c))};
       },
       [](Case& c, Draw& draw) {
         c.layout.stages.last = chunks(c);
         c.model.layers += draw.between(1, 2) * chunks(c);
       }},
      {"stage_layers_by_v",
       [](const Case& c) {
         return has_ends(c) && !accounts(c) &&
                (c.layout.stages.first % chunks(c) != 0 || c.layout.stages.last % chunks(c) != 0);
       },
       [](const Case& c) {
         return Terms{c.layout.v, 1};
       },
       [](Case& c, Draw& draw) {
         c.layout.v = 2;
         c.layout.schedule = ScheduleKind::Interleaved;
         c.layout.stages.first = 1;
         c.layout.stages.last = 2 * draw.between(1, 3) + 1;
         c.model.layers = c.layout.stages.first + c.layout.stages.last + 4 * (c.layout.pp - 2);
       }}};
}

std::vector<Law> laws_of_recomputation() {
  const auto full = [](Case& c, CheckpointMethod method, int layers) {
    c.layout.recompute = models::Recompute::Full;
    c.layout.recompute.method = method;
    c.layout.recompute.layers = layers;
  };
  const auto is_full = [](const Case& c) {
    return c.layout.recompute.what == models::Recompute::Full;
  };
  return {{"recompute_layers_min",
           [=](const Case& c) { return is_full(c) && c.layout.recompute.layers < 1; },
           [](const Case& c) {
             return Terms{c.layout.recompute.layers, 1};
           },
           [=](Case& c, Draw& draw) { full(c, CheckpointMethod::Block, -draw.between(0, 5)); }},
          {"recompute_layers_max",
           [=](const Case& c) { return is_full(c) && c.layout.recompute.layers > c.model.layers; },
           [](const Case& c) {
             return Terms{c.layout.recompute.layers, c.model.layers};
           },
           [=](Case& c, Draw& draw) {
             full(c, draw.of({CheckpointMethod::Block, CheckpointMethod::Uniform}),
                  c.model.layers + draw.between(1, 9));
           }},
          {"recompute_uniform_zero",
           [=](const Case& c) {
             return is_full(c) && c.layout.recompute.method == CheckpointMethod::Uniform &&
                    c.layout.recompute.layers > 1 && c.layout.pp == 1 && c.layout.zero_stage == 3 &&
                    shard_ranks(c) > 1;
           },
           [](const Case& c) {
             return Terms{c.layout.recompute.layers, 3, 1};
           },
           [=](Case& c, Draw& draw) {
             full(c, CheckpointMethod::Uniform, draw.between(2, 5));
             c.layout.pp = 1;
             c.layout.v = 1;
             c.layout.schedule = ScheduleKind::OneForwardOneBackward;
             c.layout.zero_stage = 3;
             c.devices = c.layout.world_size();
           }}};
}

}  // namespace

std::vector<Law> laws_of_the_model() {
  std::vector<Law> all;
  for (auto* make :
       {laws_of_degrees, laws_of_splits, laws_of_sizes, laws_of_sharding, laws_of_stage_lists,
        laws_of_stage_forms, laws_of_stage_ends, laws_of_recomputation}) {
    for (Law& law : make()) all.push_back(std::move(law));
  }
  return all;
}

}  // namespace foresail::planner::illegal
