/// \file
/// Which rows the parts of an overlapped linear layer have (Split::overlap_tp): what is priced and
/// what runs cut them by the same rule. Ranks hold shards of equally many rows (sequence
/// parallelism), one below the other; without it there is one shard, of all rows.
///
/// Gather in front of a GEMM, as in a ring exchange (Transformer Engine's userbuffers): part 0 of
/// the GEMM works on the rank's own shard and waits for nothing. Gather i brings slice i - 1 of
/// every rank's shard, and part i of the GEMM works on that slice of the other ranks.
///
/// GEMM in front of a reduction: part i works on slice i of every shard, so that its reduce-scatter
/// leaves slice i of each rank's shard there; an all-reduce leaves it everywhere.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace foresail::models {

struct RowSlice {
  std::int64_t first = 0;
  std::int64_t rows = 0;
  friend bool operator==(const RowSlice&, const RowSlice&) = default;
};

/// Of a shard of `rows` rows, as equal as integers allow. Fewer than kOverlapChunks - 1, or
/// kOverlapChunks, if there are fewer rows.
std::vector<RowSlice> gathered_slices(std::int64_t rows);
std::vector<RowSlice> reduced_slices(std::int64_t rows);

/// "qkv" -> "qkv.2"; unchanged if there is one part.
std::string part_name(const std::string& name, int index, int count);

}  // namespace foresail::models
