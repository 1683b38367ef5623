#include "foresail/models/row_slices.h"

#include <algorithm>

#include "foresail/base/error.h"
#include "foresail/models/operators.h"

namespace foresail::models {
namespace {

std::vector<RowSlice> slices(std::int64_t rows, std::int64_t most) {
  FORESAIL_EXPECT(rows > 0);
  const std::int64_t count = std::min(rows, most);
  std::vector<RowSlice> made;
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t first = rows * i / count;
    made.push_back({first, rows * (i + 1) / count - first});
  }
  return made;
}

}  // namespace

std::vector<RowSlice> gathered_slices(std::int64_t rows) {
  return slices(rows, kOverlapChunks - 1);
}

std::vector<RowSlice> reduced_slices(std::int64_t rows) {
  return slices(rows, kOverlapChunks);
}

std::string part_name(const std::string& name, int index, int count) {
  return count == 1 ? name : name + "." + std::to_string(index);
}

}  // namespace foresail::models
