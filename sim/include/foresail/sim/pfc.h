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
///
/// A coupled flow (a ring) has several legs, all of which go at the pace of the slowest, the least
/// of their running means. A sender offers 1.03 times that pace, so that it can recover, and what
/// its leg lags behind.
#pragma once

#include <cstdint>
#include <limits>
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

/// A step on the way of a leg: of a flow of rate x, `weight` x passes.
struct PfcHop {
  std::uint32_t link;
  double weight = 1;
};

/// A flow that wants to send, and how it did so far.
struct PfcDemand {
  std::uint32_t flow;
  double rate_max = std::numeric_limits<double>::infinity();  ///< of one with several legs
  double rate = 0;          ///< of the last solve that it took part in
  bool was_solved = false;  ///< its links keep what they learnt in the last solve
};

struct PfcRate {
  static constexpr std::uint32_t kUnhindered = ~0u;
  double rate = 0;
  std::uint32_t cut_at = kUnhindered;  ///< link where its slowest leg lost most
};

/// The fixed point for one set of flows of which some are active at a time. Rates and capacities in
/// one unit, as bytes per second.
class IngressFairRates {
 public:
  using Leg = std::vector<PfcHop>;  ///< from source to destination, no link twice

  /// Without links and flows.
  explicit IngressFairRates(const PfcOptions& options = {});
  /// `paths`: the links of each flow, of one leg, from source to destination. Throws
  /// Error{InvalidInput} if links wait for each other in a cycle: such a fabric can deadlock and
  /// has no fixed point.
  IngressFairRates(std::vector<double> capacity,
                   const std::vector<std::vector<std::uint32_t>>& paths,
                   const PfcOptions& options = {});

  /// Links up to `link` exist from now on; this one has `capacity` > 0.
  void set_capacity(std::uint32_t link, double capacity);
  /// Returns the number of the flow; legs must not be empty, nor be without links.
  std::uint32_t add_flow(std::span<const Leg> legs);
  /// Links of which each waits for the next one's buffers and the last for the first's; empty if
  /// there is no such cycle, and the flows added so far can be solved for.
  std::vector<std::uint32_t> find_cycle();

  /// One rate per demand, in order; flows may occur several times. Requires that find_cycle() is
  /// empty. Links that no flow with `was_solved` is on start from their capacities. The answer
  /// holds until the next call.
  std::span<const PfcRate> solve(std::span<const PfcDemand> demands);

  void start(std::uint32_t flow);
  void finish(std::uint32_t flow);
  /// One rate per flow, 0 for those not active. From the last solve's capacities if there was one.
  std::span<const double> solve();
  /// Share of its capacity that a link was left with by pauses in the last pass.
  double open_share(std::uint32_t link) const { return effective_[link] / capacity_[link]; }
  std::uint64_t passes() const { return passes_; }

 private:
  static constexpr std::uint32_t kSource = ~0u;
  struct Range {
    std::uint32_t begin = 0, end = 0;
  };
  /// A leg of a demand that is solved for.
  struct Strand {
    std::uint32_t first_link = 0;
    double first_weight = 1;
    double rate_max = 0;
    double limit = 0;    // of what its sender offers, if the demand has several legs
    double mean = 0;     // of what passed, over the last passes
    double offered = 0;  // in this pass
    double passing = 0;  // what is left of it on its way
    double worst_cut = 1;
    std::uint32_t cut_at = PfcRate::kUnhindered;
  };
  struct Member {
    std::uint32_t strand;
    double weight;
  };
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

  void connect(std::uint32_t from, std::uint32_t to);
  void order_links();
  void group(std::span<const PfcDemand> demands);
  void forget(std::span<const PfcDemand> demands);
  void iterate(std::size_t demands, int passes);
  void offer();
  void pass();
  void serve(const Egress& egress);
  double pace_of(std::size_t demand);
  bool is_recovering() const;

  PfcOptions options_;
  std::vector<double> capacity_;
  std::vector<Range> flows_;  // of legs_
  std::vector<Range> legs_;   // of hops_
  std::vector<PfcHop> hops_;
  std::vector<std::vector<std::uint32_t>> feeds_;  // by link, sorted
  std::vector<std::uint32_t> order_;               // links, each after those that feed it
  std::vector<std::uint32_t> rank_;                // of a link in it
  bool is_ordered_ = true;
  // What links learn.
  std::vector<double> effective_;
  std::vector<double> carried_, throttle_;  // of one pass
  std::vector<int> recoveries_;             // passes in a row in which a link recovered
  // The demands solved for.
  std::vector<Egress> egresses_;
  std::vector<Ingress> ingresses_;
  std::vector<Member> members_;
  std::vector<Strand> strands_;
  std::vector<Range> strands_of_;  // by demand
  std::vector<bool> is_sending_;   // by demand
  std::vector<int> gains_;         // by demand: passes in a row in which its slowest leg gained
  std::vector<PfcRate> rates_;     // by demand
  std::vector<std::uint32_t> by_demand_;  // scratch of serve()
  // Of start() and finish().
  std::vector<bool> is_active_;        // by flow
  std::vector<std::uint32_t> listed_;  // flows by demand; those that ended stay for a while
  std::size_t active_ = 0;
  std::vector<double> rate_;  // by flow
  bool is_listed_ = false;
  bool is_warm_ = false;
  std::uint64_t passes_ = 0;
};

}  // namespace foresail::sim
