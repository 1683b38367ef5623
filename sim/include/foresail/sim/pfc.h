/// \file
/// Rates of flows on a fabric with priority flow control (PFC) and no congestion control.
///
/// Such a switch is not fair by flow. Where an egress is overloaded it serves its ingress ports in
/// turn, so each *ingress* gets its max-min share; and a port that is paused holds up everything
/// behind it, also what would leave by a free egress (head-of-line blocking). The fixed point of
/// both (facts: fluid PFC model, checked there against a packet simulator):
///
///     unknown per link l: effective capacity c_l <= C_l, at first C_l
///     forward, link by link from the sources: the flows that arrive over one previous link j are
///       one ingress with demand d_j = sum of their rates; if the demands exceed c_l, each gets its
///       max-min share a_j and its flows are scaled by a_j / d_j
///     backward: t_j = least a_j / d_j over the links that follow j. If t_j < 1, link j is paused
///       for part of the time: c_j = R_j t_j^0.6, R_j what it carried in this pass; otherwise c_j
///       recovers by 3 % up to C_j
///
/// Flows at their source are one ingress each. The passes circle around the fixed point within some
/// percent, so a rate is the mean over the last half of the passes; while a link still recovers in
/// pass after pass, as after the end of what paused it, they go on.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace foresail::sim {

struct PfcOptions {
  int passes_cold = 40;  ///< from full capacities
  int passes_warm = 4;   ///< after flows came or went
  double damping = 0.6;  ///< exponent of t_j
  double recovery = 1.03;
  int rounds_max = 40;  ///< of passes, while a link still recovers
};

/// The fixed point for one set of flows of which some are active at a time. Rates and capacities in
/// one unit, as bytes per second.
class IngressFairRates {
 public:
  /// `paths`: the links of each flow from source to destination. Throws Error{InvalidInput} if
  /// links wait for each other in a cycle: such a fabric can deadlock and has no fixed point.
  IngressFairRates(std::vector<double> capacity, std::vector<std::vector<std::uint32_t>> paths,
                   const PfcOptions& options = {});

  void start(std::uint32_t flow);
  void finish(std::uint32_t flow);
  /// One rate per flow, 0 for those not active. From the last solve's capacities if there was one.
  std::span<const double> solve();
  /// Share of its capacity that a link was left with by pauses in the last pass.
  double open_share(std::uint32_t link) const { return effective_[link] / capacity_[link]; }
  std::uint64_t passes() const { return passes_; }

 private:
  static constexpr std::uint32_t kSource = ~0u;
  /// The flows that reach a link from one previous link.
  struct Ingress {
    std::uint32_t from = kSource;
    std::uint32_t begin = 0, end = 0;  // of members_
    double demand = 0;
  };
  struct Egress {
    std::uint32_t link = 0;
    std::uint32_t begin = 0, end = 0;  // of ingresses_
  };

  void order_links();
  void group();
  void pass();
  void serve(const Egress& egress);
  bool is_recovering() const;

  std::vector<double> capacity_;
  std::vector<std::vector<std::uint32_t>> paths_;
  PfcOptions options_;
  std::vector<std::uint32_t> order_;  // links, each after those that feed it
  std::vector<bool> is_active_;
  std::size_t active_ = 0, grouped_ = 0;
  std::vector<Egress> egresses_;
  std::vector<Ingress> ingresses_;
  std::vector<std::uint32_t> members_;  // flows
  std::vector<double> effective_;
  std::vector<double> carried_, throttle_;  // of one pass, by link
  std::vector<int> recoveries_;             // passes in a row in which a link recovered
  std::vector<double> passing_, rate_;      // by flow
  std::vector<std::uint32_t> by_demand_;    // scratch of serve()
  bool is_warm_ = false;
  std::uint64_t passes_ = 0;
};

}  // namespace foresail::sim
