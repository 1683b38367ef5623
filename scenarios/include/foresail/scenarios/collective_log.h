/// \file
/// Reads what nccl-tests printed, as people keep it.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "foresail/base/units.h"
#include "foresail/scenarios/collective_sweep.h"

namespace foresail::scenarios {

struct LogRow {
  Bytes size;
  double time_us = 0;           ///< out of place; in place where that is missing
  double bus_bandwidth = 0;     ///< GB/s; 0 where the log has N/A
  double in_place_time_us = 0;  ///< 0: not in the log
};

struct CollectiveLog {
  std::string file;
  std::optional<Operation> operation;  ///< if a line names the program
  int ranks = 0;                       ///< "#  Rank" lines; 0: none
  std::vector<LogRow> rows;            ///< by size; of sizes that repeat, the last
};

/// Old and new column sets (with and without `root`, `error` or `#wrong`), one or both of
/// out-of-place and in-place, prefixes of mpirun ("[1,0]<stdout>:") and srun ("0: "), N/A, comments
/// and foreign lines. Throws Error{InvalidInput} if no line is a row of nccl-tests.
CollectiveLog parse_log(std::string_view text, const std::string& name);
CollectiveLog read_log(const std::filesystem::path& path);

}  // namespace foresail::scenarios
