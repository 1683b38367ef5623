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

/// Something about one line of a log, counted from 1.
struct LogRemark {
  int line = 0;
  std::string text;
};

struct CollectiveLog {
  std::string file;
  std::optional<Operation> operation;  ///< if a line names the program
  int ranks = 0;                       ///< the highest of the "#  Rank" lines, and 1; 0: none
  std::vector<LogRow> rows;            ///< by size; of sizes that repeat, the last
  std::vector<LogRemark> skipped;      ///< damaged rows, and why
  std::vector<LogRemark> corruption;   ///< what nccl-tests found wrong with the data (#wrong)
};

/// Largest size that a row may have, and longest time: beyond, the row is damaged.
inline constexpr Bytes kLogSizeMax = Bytes(std::int64_t{1} << 50);
inline constexpr double kLogTimeMaxUs = 1e10;

/// Old and new column sets (with and without `root`, `error` or `#wrong`), one or both of
/// out-of-place and in-place, prefixes of mpirun ("[1,0]<stdout>:") and srun ("0: "), N/A, comments
/// and foreign lines. A row is skipped, with a remark, if a number in it is nan, infinite, negative
/// or out of range, if it is cut, or if its algbw is not size over time (2 %, two decimals). Throws
/// Error{InvalidInput} if no row is left.
CollectiveLog parse_log(std::string_view text, const std::string& name);
CollectiveLog read_log(const std::filesystem::path& path);

}  // namespace foresail::scenarios
