#include "linear_peak.h"

namespace foresail::models {

void LinearPeak::row_forward(const std::string& name) {
  const std::int64_t full = share_.hidden_elements() * share_.element;
  if (!share_.is_sequence_parallel) {
    live_.make(name + ".output", full);
    return;
  }
  live_.make(name + ".partial_output", full);
  live_.make(name + ".output", share_.shard_elements() * share_.element);
  live_.drop({name + ".partial_output"});
}

void LinearPeak::row_backward(const std::string& name, std::int64_t bytes, Gradient gradient) {
  if (share_.is_sequence_parallel && gradient != Gradient::LastOfShared) {
    live_.make("gathered_gradient", share_.hidden_elements() * share_.element);
  }
  live_.make(name + ".input.gradient", bytes);
  live_.drop({name + ".input", name + ".output.gradient"});
  if (gradient != Gradient::FirstOfShared) live_.drop({"gathered_gradient"});
}

void LinearPeak::column_backward(const std::string& name, std::int64_t in,
                                 const std::string& gradient) {
  const std::int64_t full = share_.tokens * in * share_.element;
  const bool scatters = share_.is_sequence_parallel;
  if (scatters) live_.make(name + ".gathered_input", full);
  live_.make(name + ".whole_input.gradient", full);
  if (scatters) live_.make(name + ".input.gradient", share_.shard_tokens * in * share_.element);
  live_.drop({name + ".gathered_input", name + ".input", gradient});
  if (scatters) live_.drop({name + ".whole_input.gradient"});
}

}  // namespace foresail::models
