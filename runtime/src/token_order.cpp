#include "token_order.h"

#include "foresail/base/error.h"

namespace foresail::runtime {

at::Tensor token_positions(const models::Split& split, int cp_rank) {
  const at::Tensor all = at::arange(split.sequence_length, at::kLong);
  if (split.cp == 1) return all;
  FORESAIL_EXPECT(split.sequence_length % (2 * split.cp) == 0);
  const std::vector<at::Tensor> pieces = all.chunk(2 * split.cp);
  const auto early = static_cast<std::size_t>(cp_rank);
  return at::cat({pieces.at(early), pieces.at(pieces.size() - 1 - early)});
}

at::Tensor token_positions_by_rank(const models::Split& split) {
  std::vector<at::Tensor> parts;
  for (int rank = 0; rank < split.cp; ++rank) parts.push_back(token_positions(split, rank));
  return at::cat(parts);
}

}  // namespace foresail::runtime
