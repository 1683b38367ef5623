#include <fmt/format.h>

#include <cmath>
#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include <utility>
#include "canonical.h"

#include "check_placement.h"
#include "expert_load.h"
#include "foresail/base/digest.h"
#include "foresail/base/error.h"
#include "foresail/planner/plan.h"

namespace foresail::planner {
namespace {

constexpr std::int64_t kBatchMax = std::int64_t{1} << 40;
constexpr double kLearningRateMax = 1e30;  // fp32 holds such updates
constexpr double kMessageCostMax = 1000;
constexpr std::string_view kIdentity = "identity";

// `devices`: of the cluster. A job on a part of it names its devices.
Document placement_document(const program::Placement& placement, int devices) {
  Document list = Document::array();
  bool is_identity = std::cmp_equal(placement.device_of.size(), devices);
  for (const DeviceId device : placement.device_of) {
    is_identity = is_identity && device.value == list.size();
    list.push_back(device.value);
  }
  return is_identity ? Document(kIdentity) : list;
}

program::Placement read_placement(const Yaml& node, int ranks) {
  if (node.is_scalar()) {
    if (node.as_string() != kIdentity) node.fail("expected identity or a list of devices");
    return program::Placement::identity(ranks);
  }
  program::Placement placement;
  for (const Yaml& item : node.items()) {
    placement.device_of.push_back(
        DeviceId{static_cast<std::uint32_t>(item.as_integer(0, INT32_MAX))});
  }
  return placement;
}

double read_message_cost(const Yaml& node) {
  const double cost = node.as_number();
  if (cost < kMessageCostMin || cost > kMessageCostMax) {
    node.fail("must be between 0.05 and 1000 (of a chunk's forward)");
  }
  return cost;
}

double not_negative(const Yaml& node, std::string_view key, double otherwise) {
  const auto value = node.find(key);
  if (!value) return otherwise;
  const double number = value->as_number();
  if (number < 0) value->fail("must not be negative");
  return number;
}

int device_count(const Plan& plan) {
  return plan.cluster.nodes * plan.cluster.node.devices;
}

/// Everything but the digest, as it stands in the file.
Document contents(const Plan& plan) {
  return {{"foresail_plan", 1},
          {"model", models::to_document(plan.model)},
          {"cluster", topologies::to_document(plan.cluster)},
          {"layout", to_document(plan.layout)},
          {"stack", models::to_document(plan.stack)},
          {"placement", placement_document(plan.placement, device_count(plan))},
          {"training", to_document(plan.training)},
          {"network", topologies::to_document(plan.network)},
          {"message_cost", plan.message_cost},
          {"seed", plan.seed}};
}

/// A path, or a map with the path and how its documents are split.
void read_data(const Yaml& node, program::Training& training) {
  if (!node.is_map()) {
    training.data = node.as_string();
    return;
  }
  node.allow_only({"path", "split"});
  training.data = node.at("path").as_string();
  const auto split = node.find("split");
  if (!split) return;
  double sum = 0;
  for (const Yaml& share : split->items()) {
    const double value = share.as_number();
    if (value < 0) share.fail("a share of the documents cannot be negative");
    sum += value;
    training.data_split.push_back(value);
  }
  if (training.data_split.empty() || training.data_split.size() > 3) {
    split->fail("expected one to three shares: for training, validation and test");
  }
  if (training.data_split.front() == 0) split->fail("no documents to train on");
  if (!std::isfinite(sum)) split->fail("the sum of the shares is too large");
}

void read_learning_rate(const Yaml& node, program::Training& training) {
  using program::LearningRateDecay;
  training.learning_rate = not_negative(node, "learning_rate", training.learning_rate);
  if (training.learning_rate > kLearningRateMax) {
    node.at("learning_rate").fail(fmt::format("must be at most {}", kLearningRateMax));
  }
  const auto steps = [&](const char* key) {
    const auto value = node.find(key);
    return value ? static_cast<int>(value->as_integer(0, INT32_MAX)) : 0;
  };
  training.warmup_steps = steps("warmup_steps");
  const auto decay = node.find("learning_rate_decay");
  if (decay) training.learning_rate_decay = decay->as_choice<LearningRateDecay>();
  if (training.learning_rate_decay == LearningRateDecay::Constant) {
    for (const char* key : {"decay_steps", "learning_rate_min"}) {
      if (const auto unused = node.find(key)) {
        unused->fail("needs learning_rate_decay linear or cosine, but it is constant");
      }
    }
    return;
  }
  training.decay_steps = steps("decay_steps");
  training.learning_rate_min = not_negative(node, "learning_rate_min", 0);
  if (training.decay_steps <= training.warmup_steps) {
    decay->fail(fmt::format("needs decay_steps above warmup_steps {}, but decay_steps is {}",
                            training.warmup_steps, training.decay_steps));
  }
  if (training.learning_rate_min > training.learning_rate) {
    node.at("learning_rate_min")
        .fail(fmt::format("must be at most learning_rate {}", training.learning_rate));
  }
}

void read_weight_decay(const Yaml& node, program::Training& training) {
  training.weight_decay = not_negative(node, "weight_decay", training.weight_decay);
  if (training.weight_decay > 0 && training.optimizer == program::Optimizer::Adam) {
    node.at("weight_decay").fail("needs optimizer adamw or lamb, but it is adam");
  }
}

/// Keys that plans of before had not stand there only if they say something.
void add_optimizer(const program::Training& training, Document& made) {
  made["optimizer"] = to_string(training.optimizer);
  made["learning_rate"] = training.learning_rate;
  if (training.warmup_steps > 0) made["warmup_steps"] = training.warmup_steps;
  if (training.learning_rate_decay != program::LearningRateDecay::Constant) {
    made["learning_rate_decay"] = to_string(training.learning_rate_decay);
    made["learning_rate_min"] = training.learning_rate_min;
    made["decay_steps"] = training.decay_steps;
  }
  if (training.weight_decay > 0) made["weight_decay"] = training.weight_decay;
}

Document data_document(const program::Training& training) {
  if (training.data_split.empty()) return training.data;
  return {{"path", training.data}, {"split", training.data_split}};
}

}  // namespace

program::Training read_training(const Yaml& node) {
  node.allow_only({"global_batch_size", "sequence_length", "precision", "gradient_dtype",
                   "optimizer", "learning_rate", "learning_rate_min", "learning_rate_decay",
                   "warmup_steps", "decay_steps", "weight_decay", "clip", "steps", "data",
                   "expert_load"});
  program::Training training;
  training.global_batch_size = node.at("global_batch_size").as_integer(1, kBatchMax);
  training.sequence_length = node.at("sequence_length").as_integer(1, kBatchMax);
  if (const auto precision = node.find("precision")) {
    training.precision = precision->as_choice<DType>();
    if (training.precision == DType::Int64) precision->fail("int64 cannot be trained in");
  }
  if (const auto dtype = node.find("gradient_dtype")) {
    training.gradient_dtype = dtype->as_choice<DType>();
    if (training.gradient_dtype == DType::Int64) dtype->fail("int64 cannot hold gradients");
  }
  if (const auto optimizer = node.find("optimizer")) {
    training.optimizer = optimizer->as_choice<program::Optimizer>();
  }
  read_weight_decay(node, training);
  read_learning_rate(node, training);
  training.clip = not_negative(node, "clip", training.clip);
  if (const auto steps = node.find("steps")) {
    training.steps = static_cast<int>(steps->as_integer(1, INT32_MAX));
  }
  if (const auto data = node.find("data")) read_data(*data, training);
  if (const auto load = node.find("expert_load")) training.expert_load = read_expert_load(*load);
  return training;
}

Document to_document(const program::Training& training) {
  Document made = {{"global_batch_size", training.global_batch_size},
                   {"sequence_length", training.sequence_length},
                   {"precision", to_string(training.precision)},
                   {"gradient_dtype", to_string(training.gradient_dtype)},
                   {"clip", training.clip},
                   {"steps", training.steps},
                   {"data", data_document(training)}};
  add_optimizer(training, made);
  if (!training.expert_load.empty()) made["expert_load"] = to_document(training.expert_load);
  return made;
}

std::string Plan::digest() const {
  return sha256(canonical(contents(*this)).dump());
}

Document to_document(const Plan& plan) {
  Document document = contents(plan);
  document["digest"] = plan.digest();
  return document;
}

Plan load_plan(const std::filesystem::path& path) {
  const Yaml root = Yaml::load(path);
  if (root.is_map() && root.find("foresail") && !root.find("foresail_plan")) {
    throw Error(ErrorCode::InvalidInput,
                root.file() + ": a scenario, but a Plan is wanted: make one with foresail plan " +
                    root.file() + " -o plan.yaml");
  }
  root.allow_only({"foresail_plan", "model", "cluster", "layout", "stack", "placement", "training",
                   "network", "message_cost", "seed", "digest"});
  root.at("foresail_plan").as_integer(1, 1);
  Plan plan;
  plan.model = models::read_model(root.at("model"));
  models::check(plan.model);
  plan.cluster = topologies::resolve_cluster(root.at("cluster"), {});
  plan.layout = read_layout(root.at("layout"));
  plan.stack = models::read_stack(root.at("stack"));
  plan.training = read_training(root.at("training"));
  plan.network = topologies::read_network(root.at("network"));
  plan.message_cost = read_message_cost(root.at("message_cost"));
  plan.seed = static_cast<std::uint64_t>(root.at("seed").as_integer(0, INT64_MAX));
  const int devices = device_count(plan);
  plan.placement = read_placement(root.at("placement"), devices);
  const int ranks = job_devices(plan);
  const auto broken = check_laws(plan.model, plan.layout, plan.training, ranks);
  const std::string stated = root.at("digest").as_string();
  const std::string actual = plan.digest();
  if (stated != actual) {
    throw Error(ErrorCode::InvalidInput,
                root.file() + ": digest " + stated + " does not match the contents (" + actual +
                    "): the plan was edited, or another version of Foresail made it");
  }
  if (!broken.empty()) root.at("layout").fail(broken.front().message);
  const auto misplaced = check_placement(plan.placement, ranks, devices);
  if (!misplaced.empty()) root.at("placement").fail(misplaced.front().message);
  return plan;
}

int job_devices(const Plan& plan) {
  const int devices = device_count(plan);
  if (std::cmp_equal(plan.placement.device_of.size(), devices)) return devices;
  std::int64_t ranks = 1;
  for (const int degree : {plan.layout.tp, plan.layout.cp, plan.layout.pp, plan.layout.dp}) {
    ranks *= degree;
    if (ranks > devices) return devices;
  }
  return static_cast<int>(ranks);
}

int job_nodes(const Plan& plan) {
  std::set<std::uint32_t> nodes;
  for (const DeviceId device : plan.placement.device_of) {
    nodes.insert(device.value / static_cast<std::uint32_t>(plan.cluster.node.devices));
  }
  return static_cast<int>(nodes.size());
}

void save_plan(const Plan& plan, const std::filesystem::path& path) {
  write_file(path, to_yaml(to_document(plan)));
}

}  // namespace foresail::planner
