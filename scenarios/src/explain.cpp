#include "foresail/scenarios/explain.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <map>
#include <set>

#include "critical_path.h"
#include "foresail/base/quantity.h"
#include "foresail/scenarios/predict.h"
#include "foresail/topologies/check.h"

namespace foresail::scenarios {
namespace {

using planner::Plan;
using program::Program;

constexpr double kSlower = 1.01;  // than the median of its peers: worth naming
constexpr std::size_t kNamed = 4;
constexpr std::size_t kBusiest = 2;

/// Simulates variations of one question.
class Inquiry {
 public:
  Inquiry(const Plan& plan, const SimulateOptions& options)
      : plan_(plan), options_(options), program_(lower_verified(plan)) {
    if (options.conditions != nullptr) conditions_ = *options.conditions;
  }

  sim::StepOutcome run(const Plan& plan, const Conditions& conditions) const {
    const topologies::Cluster cluster(plan.cluster);
    PredictOptions prediction = options_.prediction();
    prediction.conditions = &conditions;
    sim::SimulatorOptions simulator = simulator_options(plan, prediction);
    simulator.seed = options_.seed.value_or(plan.seed);
    return simulate_jobs(plan, program_, cluster, simulator, &conditions);
  }

  const Plan& plan() const { return plan_; }
  const Conditions& conditions() const { return conditions_; }
  const Program& program() const { return program_; }

 private:
  const Plan& plan_;
  const SimulateOptions& options_;
  Program program_;
  Conditions conditions_;
};

class Accusation {
 public:
  Accusation(const Inquiry& inquiry, const sim::StepOutcome& base, std::vector<Cause>& causes)
      : inquiry_(inquiry), base_(base), causes_(causes) {}

  void without(const std::string& name, const Plan& plan, const Conditions& conditions) {
    const sim::StepOutcome other = inquiry_.run(plan, conditions);
    Cause cause;
    cause.name = name;
    if (!base_.failure.empty()) {
      cause.detail = other.failure.empty() ? fmt::format("without it the step ends after {}",
                                                         foresail::to_text(other.iteration))
                                           : "without it the job fails all the same";
      cause.keeps_alive = other.failure.empty();
    } else {
      cause.cost = base_.iteration - other.iteration;
      cause.detail = fmt::format("without it {}", foresail::to_text(other.iteration));
    }
    causes_.push_back(std::move(cause));
  }

 private:
  const Inquiry& inquiry_;
  const sim::StepOutcome& base_;
  std::vector<Cause>& causes_;
};

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>((values.size() - 1) / 2);
  std::ranges::nth_element(values, middle);
  return *middle;
}

std::string nodes_text(const Plan& plan, const sim::Unit& unit) {
  std::set<int> nodes;
  for (const RankId rank : unit.ranks) {
    nodes.insert(static_cast<int>(plan.placement.device_of[rank].value) /
                 plan.cluster.node.devices);
  }
  std::string text;
  for (const int node : nodes) text += fmt::format("{}node{}", text.empty() ? "" : ", ", node);
  return text;
}

// How much longer the passes of a unit take than the same passes of its stage's other replicas: the
// median over its passes of its time against their median, so that what happens to a few passes
// (a collective beside them) does not count.
void add_slow_units(const Inquiry& inquiry, const sim::StepOutcome& outcome,
                    std::vector<std::string>& evidence) {
  const std::size_t stages = inquiry.program().stages.size();
  struct Slow {
    double ratio;
    std::size_t unit;
  };
  std::vector<Slow> slow;
  for (std::size_t s = 0; s < stages; ++s) {
    std::map<std::size_t, std::vector<double>> ratios;
    std::uint32_t id = 0;
    for (const program::Op& op : inquiry.program().stages[s].ops) {
      const std::uint32_t o = id++;
      if (op.kind != program::OpKind::Compute) continue;
      std::vector<double> times;
      for (std::size_t u = s; u < outcome.units.size(); u += stages) {
        const sim::StepOutcome::OpTime& time = outcome.op_times[u][o];
        times.push_back(to_seconds(time.end - time.start));
      }
      const double typical = median(times);
      if (typical <= 0) continue;
      for (std::size_t i = 0; i < times.size(); ++i) {
        ratios[i * stages + s].push_back(times[i] / typical);
      }
    }
    for (const auto& [unit, of_unit] : ratios) {
      const double ratio = median(of_unit);
      if (ratio > kSlower) slow.push_back({ratio, unit});
    }
  }
  std::ranges::stable_sort(slow, [](const Slow& a, const Slow& b) { return a.ratio > b.ratio; });
  for (std::size_t i = 0; i < std::min(slow.size(), kNamed); ++i) {
    const sim::Unit& unit = outcome.units[slow[i].unit];
    evidence.push_back(fmt::format(
        "stage {} of replica {} ({}) computes {:.1f} % longer than the median of its stage",
        unit.stage, unit.replica, nodes_text(inquiry.plan(), unit), 100 * (slow[i].ratio - 1)));
  }
  if (slow.size() > kNamed) {
    evidence.push_back(fmt::format("and {} more units are over {:.0f} % slower than their median",
                                   slow.size() - kNamed, 100 * (kSlower - 1)));
  }
}

void add_critical_path(const Inquiry& inquiry, const sim::StepOutcome& outcome,
                       std::vector<std::string>& evidence) {
  const CriticalPath path = critical_path(inquiry.program(), outcome);
  const auto share = [&](Duration part) {
    return fmt::format("{} ({:.1f} %)", foresail::to_text(part),
                       100 * to_seconds(part) / to_seconds(outcome.iteration));
  };
  const sim::Unit& unit = outcome.units[path.unit];
  evidence.push_back(fmt::format(
      "critical path of {} ops: passes {}, messages {}, gradients and parameters {}, optimizer {}, "
      "other {}, waiting {}; {:.0f} % of its passes run on stage {} of replica {} ({})",
      path.ops, share(path.compute), share(path.messages), share(path.gradients),
      share(path.optimizer), share(path.other), share(path.waiting), 100 * path.share_of_unit,
      unit.stage, unit.replica, nodes_text(inquiry.plan(), unit)));
}

void add_collisions(const sim::StepOutcome& outcome, std::vector<std::string>& evidence) {
  if (outcome.loaded_links == 0) return;
  evidence.push_back(fmt::format("flows collided on {} of the {} links between switches in use",
                                 outcome.collided_links, outcome.loaded_links));
  for (std::size_t i = 0; i < std::min(outcome.collisions.size(), kNamed); ++i) {
    const sim::Collision& each = outcome.collisions[i];
    std::string names;
    for (const std::string& name : each.names) names += (names.empty() ? "" : ", ") + name;
    evidence.push_back(fmt::format("{}: up to {} flows, slowed them for {}: {}", each.link,
                                   each.flows, foresail::to_text(each.limiting), names));
  }
}

void add_busiest_links(const sim::StepOutcome& outcome, std::vector<std::string>& evidence) {
  std::vector<const sim::LinkLoad*> busiest;
  for (const sim::LinkLoad& load : outcome.links) busiest.push_back(&load);
  std::ranges::stable_sort(busiest, [](const sim::LinkLoad* a, const sim::LinkLoad* b) {
    return a->utilisation > b->utilisation;
  });
  for (std::size_t i = 0; i < std::min(busiest.size(), kBusiest); ++i) {
    evidence.push_back(fmt::format("{} is used to {:.1f} % of its capacity over the step",
                                   busiest[i]->name, 100 * busiest[i]->utilisation));
  }
}

void add_wiring(const Plan& plan, std::vector<std::string>& evidence) {
  const std::vector<topologies::Finding> findings =
      topologies::check_wiring(topologies::Cluster(plan.cluster));
  for (std::size_t i = 0; i < std::min(findings.size(), kNamed); ++i) {
    evidence.push_back(
        fmt::format("topology check: {}: {}", to_string(findings[i].kind), findings[i].message));
  }
  if (findings.size() > kNamed) {
    evidence.push_back(fmt::format("topology check: and {} more", findings.size() - kNamed));
  }
}

void accuse_wiring(const Inquiry& inquiry, Accusation& accuse) {
  const topologies::Wiring& wiring = inquiry.plan().cluster.wiring;
  for (std::size_t i = 0; i < wiring.size(); ++i) {
    Plan mended = inquiry.plan();
    mended.cluster.wiring.erase(mended.cluster.wiring.begin() + static_cast<std::ptrdiff_t>(i));
    std::string name = fmt::format("wiring: {} {}", to_string(wiring[i].action), wiring[i].first);
    if (!wiring[i].second.empty()) name += " with " + wiring[i].second;
    accuse.without(name, mended, inquiry.conditions());
  }
}

void accuse_conditions(const Inquiry& inquiry, Accusation& accuse) {
  const Conditions& all = inquiry.conditions();
  for (std::size_t i = 0; i < all.faults.size(); ++i) {
    Conditions less = all;
    less.faults.erase(less.faults.begin() + static_cast<std::ptrdiff_t>(i));
    const sim::Fault& fault = all.faults[i];
    accuse.without(fmt::format("{} {}", to_string(fault.kind), fault.target), inquiry.plan(), less);
  }
  if (all.jitter.sigma > 0) {
    Conditions less = all;
    less.jitter = {};
    accuse.without(fmt::format("jitter of {:.3g} %", 100 * all.jitter.sigma), inquiry.plan(), less);
  }
  if (!all.traffic.empty()) {
    Conditions less = all;
    less.traffic.clear();
    accuse.without("other traffic", inquiry.plan(), less);
  }
  for (std::size_t i = 0; i < all.jobs.size(); ++i) {
    Conditions less = all;
    less.jobs.erase(less.jobs.begin() + static_cast<std::ptrdiff_t>(i));
    accuse.without("job " + all.jobs[i].name, inquiry.plan(), less);
  }
}

}  // namespace

Explanation explain_step(const Plan& plan, const SimulateOptions& options) {
  const Inquiry inquiry(plan, options);
  const sim::StepOutcome base = inquiry.run(plan, inquiry.conditions());
  Explanation explanation;
  explanation.failure = base.failure;
  explanation.iteration = base.iteration;
  explanation.plan_digest = plan.digest();
  Accusation accuse(inquiry, base, explanation.causes);
  accuse_conditions(inquiry, accuse);
  accuse_wiring(inquiry, accuse);
  const bool is_hashed = plan.network.routing == topologies::Routing::Ecmp ||
                         plan.network.routing == topologies::Routing::DModK;
  if (is_hashed && options.fidelity == sim::Fidelity::Flow && plan.cluster.nodes > 1) {
    Plan sprayed = plan;
    sprayed.network.routing = topologies::Routing::Spray;
    sprayed.network.sharing = topologies::Sharing::MaxMin;
    accuse.without(fmt::format("collisions ({})", to_string(plan.network.routing)), sprayed,
                   inquiry.conditions());
  }
  std::ranges::stable_sort(explanation.causes, [](const Cause& a, const Cause& b) {
    return a.keeps_alive != b.keeps_alive ? a.keeps_alive : a.cost > b.cost;
  });
  add_wiring(plan, explanation.evidence);
  if (base.failure.empty()) {
    for (std::string& note : unmet(inquiry.conditions(), base.iteration)) {
      explanation.evidence.push_back(std::move(note));
    }
    add_critical_path(inquiry, base, explanation.evidence);
    add_slow_units(inquiry, base, explanation.evidence);
    add_collisions(base, explanation.evidence);
    add_busiest_links(base, explanation.evidence);
    if (base.stalls > 0) {
      explanation.evidence.push_back(fmt::format("{} flows waited for a retry, at most {}",
                                                 base.stalls,
                                                 foresail::to_text(base.longest_stall)));
    }
  }
  return explanation;
}

Document to_document(const Explanation& explanation) {
  Document causes = Document::array();
  for (const Cause& cause : explanation.causes) {
    causes.push_back({{"cause", cause.name},
                      {"cost_s", explanation.failure.empty() ? Document(to_seconds(cause.cost))
                                                             : Document(nullptr)},
                      {"detail", cause.detail}});
  }
  return {{"iteration_time_s", to_seconds(explanation.iteration)},
          {"failure", explanation.failure},
          {"causes", causes},
          {"evidence", explanation.evidence},
          {"plan_digest", explanation.plan_digest}};
}

std::string to_text(const Explanation& explanation) {
  std::string text;
  if (explanation.failure.empty()) {
    text += fmt::format("step time {}\n", foresail::to_text(explanation.iteration));
  } else {
    text += fmt::format("the job fails after {}: {}\n", foresail::to_text(explanation.iteration),
                        explanation.failure);
  }
  text += "\nwhat costs time (each taken away alone, the step simulated again)\n";
  for (const Cause& cause : explanation.causes) {
    const std::string cost =
        explanation.failure.empty() ? foresail::to_text(cause.cost) : std::string("-");
    text += fmt::format("  {:<44} {:>10}   {}\n", cause.name, cost, cause.detail);
  }
  if (explanation.causes.empty()) text += "  nothing but the plan itself\n";
  if (!explanation.evidence.empty()) text += "\nwhat the simulated step shows\n";
  for (const std::string& line : explanation.evidence) text += "  " + line + "\n";
  return text;
}

}  // namespace foresail::scenarios
