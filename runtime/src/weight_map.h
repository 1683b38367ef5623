/// \file
/// Which part of which Hugging Face tensor a rank's parameter is.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "foresail/runtime/weights.h"
#include "parameters.h"
#include "safetensors.h"

namespace foresail::runtime {

/// Names and shapes of all tensors, in the file's order.
std::vector<std::pair<std::string, std::vector<std::int64_t>>> tensor_list(
    const models::Model& model, std::int64_t sequence_length);

/// Rows of a parameter and where they stand in a tensor. A vector counts as rows of one column.
struct WeightPart {
  std::string tensor;
  std::int64_t local_row = 0;  ///< first row of the parameter
  std::int64_t rows = 0;       ///< that the tensor has; padding of the vocabulary has none
  std::int64_t columns = 0;    ///< of the parameter
  std::int64_t row = 0;        ///< that the first one is, of the whole matrix [out, in]
  std::int64_t column = 0;     ///< that the parameter's first column is
  bool is_transposed = false;  ///< the tensor is [in, out] (GPT-2's Conv1D)
};

/// The parts that make up a parameter of rank `tp_rank` of `tp`.
std::vector<WeightPart> weight_parts(const models::Model& model, const Parameter& parameter, int tp,
                                     int tp_rank);

/// Writes elements [first, first + count) of the parameter, which `values` holds, into the file.
/// Throws Error{Io}, Error{NotFound} where the file that create_weights made cannot be seen.
void write_part(const std::filesystem::path& path, const SafetensorsHead& head,
                const std::vector<WeightPart>& parts, std::int64_t first, const float* values,
                std::int64_t count);

/// Fills the parameter; padded rows stay as they are.
void read_parts(const Safetensors& file, const std::vector<WeightPart>& parts, float* values);

}  // namespace foresail::runtime
