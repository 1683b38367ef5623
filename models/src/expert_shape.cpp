// Which layers have experts, and which experts there cannot be.
#include <fmt/format.h>

#include "shape.h"

namespace foresail::models {
namespace {

constexpr int kExpertsMax = 1 << 16;
constexpr std::int64_t kWidthMax = 1 << 22;
constexpr int kLayersMax = 10'000;
constexpr double kCapacityMax = 1000;
constexpr double kBalanceMax = 100;

std::optional<std::string> outside(const char* name, std::int64_t value, std::int64_t low,
                                   std::int64_t high) {
  if (value >= low && value <= high) return std::nullopt;
  return fmt::format("experts: {} {} is not between {} and {}", name, value, low, high);
}

std::optional<std::string> find_out_of_bounds(const Experts& experts) {
  if (auto complaint = outside("count", experts.count, 1, kExpertsMax)) return complaint;
  if (auto complaint = outside("per_token", experts.per_token, 1, experts.count)) return complaint;
  if (auto complaint = outside("ffn", experts.ffn, 1, kWidthMax)) return complaint;
  if (auto complaint = outside("shared", experts.shared, 0, kExpertsMax)) return complaint;
  if (auto complaint = outside("shared_ffn", experts.shared_ffn, 0, kWidthMax)) return complaint;
  if (auto complaint = outside("every", experts.every, 1, kLayersMax)) return complaint;
  return outside("first_dense_layers", experts.first_dense_layers, 0, kLayersMax);
}

}  // namespace

std::optional<std::string> find_impossible_experts(const Model& model) {
  const Experts& experts = model.experts;
  if (experts == Experts{}) return std::nullopt;
  if (auto complaint = find_out_of_bounds(experts)) return complaint;
  if ((experts.shared == 0) != (experts.shared_ffn == 0)) {
    return fmt::format("experts: shared {} and shared_ffn {}: both or none must be 0",
                       experts.shared, experts.shared_ffn);
  }
  if (shared_ffn(model) > kWidthMax) {
    return fmt::format("experts: shared {} * shared_ffn {} = {} is more than {}", experts.shared,
                       experts.shared_ffn, shared_ffn(model), kWidthMax);
  }
  if (experts.shared_gate && experts.shared == 0) {
    return "experts: shared_gate needs shared experts, but shared is 0";
  }
  if (experts.capacity_factor < 0 || experts.capacity_factor > kCapacityMax) {
    return fmt::format("experts: capacity_factor {} is not between 0 and {}",
                       experts.capacity_factor, kCapacityMax);
  }
  if (!(experts.balance_loss >= 0 && experts.balance_loss <= kBalanceMax)) {
    return fmt::format("experts: balance_loss {} is not between 0 and {}", experts.balance_loss,
                       kBalanceMax);
  }
  if (expert_layers(model) == 0) {
    return fmt::format("experts: first_dense_layers {} leaves none of {} layers",
                       experts.first_dense_layers, model.layers);
  }
  if (model.block == Block::Parallel) return "experts need block serial, but it is parallel";
  return std::nullopt;
}

bool has_experts(const Model& model, int layer) {
  const Experts& experts = model.experts;
  if (experts.count == 0 || layer < experts.first_dense_layers) return false;
  return (layer - experts.first_dense_layers) % experts.every == 0;
}

int expert_layers(const Model& model) {
  int layers = 0;
  for (int layer = 0; layer < model.layers; ++layer) layers += has_experts(model, layer) ? 1 : 0;
  return layers;
}

}  // namespace foresail::models
