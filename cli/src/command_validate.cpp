#include <fmt/format.h>

#include <unistd.h>

#include "command.h"
#include "foresail/base/error.h"
#include "foresail/scenarios/validate.h"

namespace foresail::cli {
namespace {

struct Options {
  Common common;
  std::string rows;
  int anchor = 0;
};

int run(const Options& options) {
  if (options.anchor != 0) {
    throw Error(ErrorCode::Unsupported, "--anchor is not part of this version");
  }
  const scenarios::RowFile file = scenarios::read_rows(options.rows);
  scenarios::ValidateOptions validate;
  validate.predict.fidelity = options.common.fidelity_choice();
  validate.predict.fold = options.common.fold_choice();
  validate.threads = options.common.threads;
  if (!options.common.is_quiet && ::isatty(STDERR_FILENO) != 0) {
    validate.progress = [](std::size_t done, std::size_t all) {
      fmt::print(stderr, "\r{} of {} rows{}", done, all, done == all ? "\n" : "");
    };
  }
  const scenarios::Scoreboard board = scenarios::validate(file, validate);
  answer(options.common, scenarios::to_document(board), scenarios::to_text(board));
  return kOk;
}

}  // namespace

Command add_validate(CLI::App& root) {
  auto options = std::make_shared<Options>();  // shared with the runner below
  CLI::App* app = root.add_subcommand("validate", "predict published steps and show the errors");
  app->add_option("--rows", options->rows, "YAML or CSV file of published steps")->required();
  app->add_option("--anchor", options->anchor, "rows per source to refit on (not in this version)");
  options->common.add_to(*app);
  return {app, [options] { return run(*options); }};
}

}  // namespace foresail::cli
