#include "expert_peak.h"

namespace foresail::models {
namespace {}  // namespace

std::vector<ExpertPeak::Stop> ExpertPeak::way_to_experts() const {
  std::vector<Stop> way{{"rows.sent", experts_.copies}};
  if (experts_.ep > 1) way.push_back({"rows.received", experts_.received});
  if (experts_.expert_tp > 1) way.push_back({"rows.gathered", experts_.gathered});
  if (experts_.needs_sort()) way.push_back({"rows.sorted", experts_.gathered});
  return way;
}

std::vector<ExpertPeak::Stop> ExpertPeak::way_back() const {
  std::vector<Stop> way{{"rows.computed", experts_.gathered}};
  if (experts_.needs_sort()) way.push_back({"rows.unsorted", experts_.gathered});
  if (experts_.expert_tp > 1) way.push_back({"rows.scattered", experts_.received});
  if (experts_.ep > 1) way.push_back({"rows.returned", experts_.copies});
  return way;
}

void ExpertPeak::move_rows(std::vector<Stop> way, const std::vector<std::string_view>& sources,
                           const std::string& last) {
  way.back().name = last;
  for (std::size_t i = 0; i < way.size(); ++i) {
    live_.make(way[i].name, row_bytes(way[i].rows));
    if (i == 0) {
      live_.drop(sources);
    } else {
      live_.drop({way[i - 1].name});
    }
  }
}

void ExpertPeak::forward(Graph graph) {
  live_.make("router.input", row_bytes(experts_.tokens));
  run(graph == Graph::Dropped || reruns_all_ ? Rows::Dropped : Rows::Kept);
  live_.make("experts.output", row_bytes(experts_.tokens));
  if (graph == Graph::Dropped || reruns_all_) live_.drop({"unpermute.input"});
  if (reruns_all_) live_.drop({"router.probabilities"});
  if (!experts_.is_overlapped) {
    shared_in();
    shared_out(graph == Graph::Dropped || reruns_all_ ? Rows::Dropped : Rows::Kept);
  }
  if (reruns_all_) live_.drop({"shared.scale.input"});
  if (reruns_norm_) live_.drop({"router.input"});
}

/// To the rows that have come home.
void ExpertPeak::run(Rows rows) {
  live_.make("router.logits", experts_.tokens * experts_.experts * share_.element);
  live_.make("router.probabilities", experts_.tokens * experts_.experts * kFp32);
  live_.drop({"router.logits"});
  if (experts_.is_overlapped) shared_in();
  route(rows);
  if (experts_.is_overlapped) shared_out(rows);
}

/// What stands in front of the backward pass.
void ExpertPeak::rerun() {
  if (reruns_norm_) live_.make("router.input", row_bytes(experts_.tokens));
  if (!reruns_all_) return;
  run(Rows::Kept);
  if (!stops_early_) live_.make("experts.output", row_bytes(experts_.tokens));
  if (!experts_.is_overlapped) {
    shared_in();
    if (!stops_early_ || experts_.has_shared_gate) shared_out(Rows::Kept);
  }
  live_.drop({"experts.output", "shared_fc2.output"});
}

// Operands of fp8 are copies.
void ExpertPeak::route(Rows rows) {
  const bool is_cast = share_.linear_element < share_.element;
  move_rows(way_to_experts(), {}, is_cast ? "rows.uncast" : "experts.fc1.input");
  if (is_cast) {
    live_.make("experts.fc1.input", experts_.gathered * share_.hidden * share_.linear_element);
    live_.drop({"rows.uncast"});
  }
  live_.make("experts.activation.input", experts_.gathered * experts_.fc1_width * share_.element);
  if (rows == Rows::Dropped) live_.drop({"experts.fc1.input"});
  live_.make("experts.fc2.input", experts_.gathered * experts_.ffn * share_.linear_element);
  if (rows == Rows::Dropped) live_.drop({"experts.activation.input"});
  move_rows(way_back(), {}, "unpermute.input");
  if (rows == Rows::Dropped || reruns_activation_) live_.drop({"experts.fc2.input"});
}

void ExpertPeak::shared_in() {
  if (!experts_.has_shared()) return;
  const std::int64_t full = share_.hidden_elements() * share_.element;
  if (share_.is_sequence_parallel) live_.make("shared_fc1.gathered_input", full);
  live_.make("shared_activation.input", share_.tokens * experts_.shared_fc1_width * share_.element);
  linear_.column_forward(experts_.shared_fc1_width);
  live_.drop({"shared_fc1.gathered_input"});
  live_.make("shared_fc2.input", share_.tokens * experts_.shared_ffn * share_.linear_element);
}

void ExpertPeak::shared_out(Rows rows) {
  if (!experts_.has_shared()) return;
  if (rows == Rows::Dropped) live_.drop({"shared_activation.input"});
  linear_.row_forward("shared_fc2", experts_.shared_ffn);
  if (rows == Rows::Dropped || reruns_activation_) live_.drop({"shared_fc2.input"});
  if (experts_.has_shared_gate) {
    live_.make("shared.scale.input", row_bytes(experts_.tokens));
  }
}

void ExpertPeak::backward() {
  rerun();
  if (!experts_.is_overlapped) {
    shared_out_backward();
    shared_in_backward();
  }
  routed_backward();
  route_backward();
}

void ExpertPeak::shared_out_backward() {
  if (!experts_.has_shared()) return;
  if (experts_.has_shared_gate) {
    live_.make("shared_fc2.output.gradient", row_bytes(experts_.tokens));
    live_.drop({"shared.scale.input"});
  }
  const std::int64_t kept = share_.tokens * experts_.shared_ffn * share_.linear_element;
  if (reruns_activation_) live_.make("shared_fc2.input", kept);
  linear_.row_backward("shared_fc2", experts_.shared_ffn);
}

void ExpertPeak::shared_in_backward() {
  if (!experts_.has_shared()) return;
  live_.make("shared_activation.input.gradient",
             share_.tokens * experts_.shared_fc1_width * share_.element);
  live_.drop({"shared_fc2.input.gradient", "shared_activation.input"});
  linear_.column_backward("shared_fc1", {share_.hidden, experts_.shared_fc1_width},
                          "shared_activation.input.gradient");
}

// The gradients of rows take the same ways: sent, received, gathered, sorted, and home again.
void ExpertPeak::routed_backward() {
  move_rows(way_to_experts(), {"unpermute.input"}, "experts.fc2.output.gradient");
  if (experts_.is_overlapped) shared_out_backward();
  const std::int64_t gathered = experts_.gathered * share_.element;
  const std::int64_t kept = experts_.gathered * experts_.ffn * share_.linear_element;
  if (reruns_activation_) live_.make("experts.fc2.input", kept);
  live_.make("experts.fc2.input.gradient", gathered * experts_.ffn);
  live_.drop({"experts.fc2.input", "experts.fc2.output.gradient"});
  live_.make("experts.activation.input.gradient", gathered * experts_.fc1_width);
  live_.drop({"experts.activation.input", "experts.fc2.input.gradient"});
  move_rows(way_back(), {"experts.fc1.input", "experts.activation.input.gradient"},
            "rows.gradient");
}

void ExpertPeak::route_backward() {
  if (experts_.is_overlapped) shared_in_backward();
  live_.make("router.input.gradient", row_bytes(experts_.tokens));
  live_.drop({"rows.gradient", "shared_fc1.input.gradient", "shared_fc1.whole_input.gradient"});
  live_.make("router.gradient", experts_.tokens * experts_.experts * kFp32);
  live_.make("router.dgrad", row_bytes(experts_.tokens));
  live_.drop({"router.probabilities", "router.gradient", "router.dgrad", "router.input"});
}

}  // namespace foresail::models
