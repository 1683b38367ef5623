#include <fmt/format.h>

#include <unistd.h>

#include <ctime>
#include <filesystem>

#include "command.h"
#include "foresail/base/error.h"
#include "foresail/scenarios/validate.h"
#include "option_checks.h"

namespace foresail::cli {
namespace {

struct Options {
  Common common;
  std::string rows;
  int anchor = 0;
  bool lists_skipped = false;
  std::string log, commit = "unknown";
};

std::string today() {
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  ::gmtime_r(&now, &utc);
  return fmt::format("{:04}-{:02}-{:02}", utc.tm_year + 1900, utc.tm_mon + 1, utc.tm_mday);
}

constexpr const char* kLogColumns = "| date | commit | constants |";

// Appends to the log of runs; a new log gets its header.
void append(const Options& options, const scenarios::Scoreboard& board) {
  if (board.scored().empty()) {
    throw Error(ErrorCode::InvalidInput,
                fmt::format("--log {}: {} has no row to score", options.log, options.rows));
  }
  const std::filesystem::path path = options.log;
  std::string text;
  std::error_code problem;
  if (std::filesystem::exists(path, problem)) {
    if (!std::filesystem::is_regular_file(path, problem)) {
      throw Error(ErrorCode::InvalidInput, fmt::format("{}: is no regular file", options.log));
    }
    text = read_file(path);
    if (!text.empty() && text.find(kLogColumns) == std::string::npos) {
      throw Error(ErrorCode::InvalidInput, fmt::format("--log {}: holds no such table (\"{} ...\")",
                                                       options.log, kLogColumns));
    }
    if (!text.empty() && !text.ends_with('\n')) text += '\n';
  }
  if (text.empty()) {
    text =
        "| date | commit | constants | rows | number | mean % | median % | worst % | bias % | in "
        "90 "
        "% interval |\n| --- | --- | --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |\n";
  }
  std::string set = std::filesystem::path(options.rows).filename().string();
  if (options.anchor > 0) set += fmt::format(", anchor {}", options.anchor);
  write_file(path, text + scenarios::log_line(board, today(), options.commit, set));
}

int run(const Options& options) {
  keep_input(options.rows, {options.common.report_file, options.log});
  const scenarios::RowFile file = scenarios::read_rows(options.rows);
  scenarios::ValidateOptions validate;
  validate.predict.fidelity = options.common.fidelity_choice();
  validate.predict.fold = options.common.fold_choice();
  validate.seed = options.common.seed;
  validate.threads = options.common.threads;
  validate.anchor_rows = options.anchor;
  if (!options.common.is_quiet && ::isatty(STDERR_FILENO) != 0) {
    validate.progress = [](std::size_t done, std::size_t all) {
      fmt::print(stderr, "\r{} of {} rows{}", done, all, done == all ? "\n" : "");
    };
  }
  const scenarios::Scoreboard board = scenarios::validate(file, validate);
  const bool is_page = options.common.report_file.ends_with(".md");
  OutputFiles files;
  if (is_page) files.add(options.common.report_file, scenarios::to_markdown(board));
  Common printed = options.common;
  if (is_page) printed.report_file.clear();
  if (!options.log.empty()) append(options, board);
  const auto skipped =
      options.lists_skipped ? scenarios::SkippedRows::Listed : scenarios::SkippedRows::Counted;
  answer(printed, scenarios::to_document(board), scenarios::to_text(board, skipped),
         std::move(files));
  return kOk;
}

}  // namespace

Command add_validate(CLI::App& root) {
  auto options = std::make_shared<Options>();  // shared with the runner below
  CLI::App* app = root.add_subcommand("validate", "predict published steps and show the errors");
  app->add_option("--rows", options->rows, "YAML or CSV file of published steps")->required();
  app->add_option(
         "--anchor", options->anchor,
         "refit on the first N rows (by id) of each source, device and stack; score the rest")
      ->check(whole_number(0, 1000));
  app->add_flag("--skipped", options->lists_skipped,
                "list the rows that cannot be predicted, instead of counting them by reason");
  app->add_option("--log", options->log, "append date, commit, constants and errors to this table");
  app->add_option("--commit", options->commit, "what to write as commit into --log");
  options->common.add_step_to(*app);
  app->add_option("--threads", options->common.threads, "threads; results do not depend on it")
      ->check(whole_number(1, 1024));
  return {app, [options] { return run(*options); }};
}

}  // namespace foresail::cli
