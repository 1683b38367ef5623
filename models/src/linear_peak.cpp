#include "linear_peak.h"

#include "foresail/models/row_slices.h"

namespace foresail::models {

void LinearPeak::row_forward(const std::string& name, std::int64_t in) {
  const std::int64_t full = share_.hidden_elements() * share_.element;
  if (!share_.is_sequence_parallel) {
    live_.make(name + ".output", full);
    return;
  }
  live_.make(name + ".partial_output", full);
  live_.make(name + ".output", share_.shard_elements() * share_.element);
  reduced_part(in);
  live_.drop({name + ".partial_output"});
}

void LinearPeak::row_backward(const std::string& name, std::int64_t in, Gradient gradient) {
  const bool gathers = share_.is_sequence_parallel && gradient != Gradient::LastOfShared;
  if (gathers) live_.make("gathered_gradient", share_.hidden_elements() * share_.element);
  live_.make(name + ".input.gradient", share_.tokens * in * share_.element);
  if (gathers) gathered_parts(share_.hidden, in);
  live_.drop({name + ".input", name + ".output.gradient"});
  if (gradient != Gradient::FirstOfShared) live_.drop({"gathered_gradient"});
}

void LinearPeak::column_backward(const std::string& name, const Columns& columns,
                                 const std::string& gradient) {
  const std::int64_t full = share_.tokens * columns.in * share_.element;
  const bool scatters = share_.is_sequence_parallel;
  if (scatters) live_.make(name + ".gathered_input", full);
  live_.make(name + ".whole_input.gradient", full);
  if (scatters) {
    live_.make(name + ".input.gradient", share_.shard_tokens * columns.in * share_.element);
    reduced_part(columns.parted);
  }
  live_.drop({name + ".gathered_input", name + ".input", gradient});
  if (scatters) live_.drop({name + ".whole_input.gradient"});
}

/// Of two ranks, the other's slice is one piece of the whole tensors.
void LinearPeak::gathered_parts(std::int64_t in, std::int64_t out) {
  if (!has_parts()) return;
  const std::int64_t slice = gathered_slices(share_.shard_tokens).back().rows * share_.element;
  const std::int64_t others = share_.shards() > 2 ? (share_.shards() - 1) * slice : 0;
  live_.make("gathered_slice", share_.shards() * slice * in);
  live_.make("part.input", others * in);
  live_.make("part.output", others * out);
  live_.drop({"gathered_slice", "part.input", "part.output"});
}

/// The part's output is a piece of the full output.
void LinearPeak::reduced_part(std::int64_t in) {
  if (!has_parts()) return;
  const std::vector<RowSlice> slices = reduced_slices(share_.shard_tokens);
  const std::int64_t rows = slices.size() > 1 ? share_.shards() * slices.back().rows : 0;
  live_.make("part.input", rows * in * share_.element);
  live_.drop({"part.input"});
}

}  // namespace foresail::models
