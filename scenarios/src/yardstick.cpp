#include "foresail/scenarios/yardstick.h"

#include <cmath>
#include <map>
#include <utility>

#include "foresail/scenarios/scenario.h"

namespace foresail::scenarios {
namespace {

int bits_of(DType dtype) {
  if (dtype == DType::Fp8) return 8;
  return dtype == DType::Fp32 ? 32 : 16;
}

constexpr double kForwardShare = 1.0 / 3;  // of the model FLOPs: what full recomputation repeats

// Seconds that one device would need at 1 FLOP/s, recomputation and bubble included.
double flop_seconds(const planner::Plan& plan) {
  const double flops =
      models::model_flops(plan.model, plan.training.global_batch_size,
                          plan.training.sequence_length,
                          {.formula = models::FlopFormula::Korthikanti, .causal = false})
          .count();
  const planner::Layout& layout = plan.layout;
  const double microbatches = static_cast<double>(plan.training.global_batch_size) /
                              static_cast<double>(layout.microbatch_size * layout.dp);
  const double bubble = (layout.pp - 1) / (layout.v * microbatches);
  const bool is_full = layout.recompute.what == models::Recompute::Full;
  return flops / layout.world_size() * (is_full ? 1 + kForwardShare : 1) * (1 + bubble);
}

}  // namespace

std::optional<Duration> Yardstick::predict(const planner::Plan& plan) const {
  for (const NaiveRate& rate : rates) {
    if (rate.device != plan.cluster.device.name) continue;
    if (rate.bits != bits_of(plan.training.precision)) continue;
    return duration_from_seconds(flop_seconds(plan) / (rate.tflops * 1e12));
  }
  return std::nullopt;
}

Yardstick fit_yardstick(const std::vector<NaiveSample>& samples) {
  struct Sum {
    double logs = 0, weights = 0;
    std::size_t rows = 0;
  };
  std::map<std::pair<std::string, int>, Sum> sums;
  for (const NaiveSample& sample : samples) {
    Sum& sum = sums[{sample.plan->cluster.device.name, bits_of(sample.plan->training.precision)}];
    sum.logs += sample.weight * std::log(flop_seconds(*sample.plan) / sample.seconds);
    sum.weights += sample.weight;
    ++sum.rows;
  }
  Yardstick made;
  for (const auto& [key, sum] : sums) {
    made.rates.push_back(
        {key.first, key.second, std::exp(sum.logs / sum.weights) * 1e-12, sum.rows});
  }
  return made;
}

Yardstick load_yardstick() {
  const Yaml root = load_catalogue("yardstick.yaml");
  root.allow_only({"rates"});
  Yardstick made;
  for (const Yaml& node : root.at("rates").items()) {
    node.allow_only({"device", "bits", "tflops", "rows"});
    NaiveRate rate;
    rate.device = node.at("device").as_string();
    rate.bits = static_cast<int>(node.at("bits").as_integer(8, 32));
    rate.tflops = node.at("tflops").as_number();
    if (!(rate.tflops > 0)) node.at("tflops").fail("must be positive");
    rate.rows = static_cast<std::size_t>(node.at("rows").as_integer(1, 1 << 30));
    made.rates.push_back(rate);
  }
  return made;
}

Document to_document(const Yardstick& yardstick) {
  Document rates = Document::array();
  for (const NaiveRate& rate : yardstick.rates) {
    rates.push_back({{"device", rate.device},
                     {"bits", rate.bits},
                     {"tflops", std::round(rate.tflops * 100) / 100},
                     {"rows", rate.rows}});
  }
  return {{"rates", rates}};
}

}  // namespace foresail::scenarios
