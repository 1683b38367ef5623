/// \file
/// `foresail explain init`.
#pragma once

#include <string>

#include "command.h"

namespace foresail::cli {

struct InitOptions {
  Common common;
  std::string scenario;
  std::string store, barriers;  ///< empty: both
  std::string groups = "plan";
  int pair_groups = 0;
};
CLI::App* add_explain_init(CLI::App& explain, InitOptions& options);
int run_explain_init(const InitOptions& options);

}  // namespace foresail::cli
