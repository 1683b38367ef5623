/// \file
/// What a layer's experts hold while they run, on the rank that gets most tokens.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "linear_peak.h"
#include "live_tensors.h"
#include "share.h"

namespace foresail::models {

/// Whether a backward pass will read what a forward pass makes.
enum class Graph { Kept, Dropped };

/// Makes and drops tensors in the order of the kernels of experts.h. Rows on their way stand in a
/// tensor of their own at every step: sent, received over ep, gathered over expert tp, sorted.
/// The constructor's arguments must outlive this.
class ExpertPeak {
 public:
  /// `split` says what a selective recomputation runs again.
  ExpertPeak(LiveTensors& live, const Split& split, const Share& share, const ExpertShare& experts)
      : live_(live),
        linear_(live, share),
        reruns_norm_(split.reruns(&RecomputeModules::norm)),
        reruns_all_(split.reruns(&RecomputeModules::mlp)),
        reruns_activation_(!reruns_all_ && split.reruns(&RecomputeModules::activation)),
        stops_early_(split.stack.early_stop_recompute),
        share_(share),
        experts_(experts) {}

  /// From the second norm to "experts.output" and, with shared experts, "shared_fc2.output".
  void forward(Graph graph);
  /// To "router.input.gradient"; the gradient of the experts' output is the caller's.
  void backward();

 private:
  enum class Rows { Dropped, Kept };  ///< what only a backward pass reads
  void run(Rows rows);
  void rerun();
  /// Rows of h in a tensor of their own.
  struct Stop {
    std::string name;
    std::int64_t rows = 0;
  };
  std::vector<Stop> way_to_experts() const;
  std::vector<Stop> way_back() const;
  /// Each stop beside the one before it. `sources` go with the first; the last is called `last`.
  void move_rows(std::vector<Stop> way, const std::vector<std::string_view>& sources,
                 const std::string& last);
  std::int64_t row_bytes(std::int64_t rows) const { return rows * share_.hidden * share_.element; }

  void route(Rows rows);
  void shared_in();
  void shared_out(Rows rows);
  void shared_out_backward();
  void shared_in_backward();
  void routed_backward();
  void route_backward();

  LiveTensors& live_;
  LinearPeak linear_;
  bool reruns_norm_, reruns_all_, reruns_activation_, stops_early_;
  const Share& share_;
  const ExpertShare& experts_;
};

}  // namespace foresail::models
