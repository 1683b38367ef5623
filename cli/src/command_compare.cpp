#include "command.h"
#include "foresail/base/error.h"
#include "foresail/program/program.h"
#include "foresail/program/trace.h"
#include "foresail/report/compare.h"

namespace foresail::cli {
namespace {

struct Options {
  Common common;
  std::string predicted, measured;
};

program::Trace load_trace(const std::string& path) {
  return program::trace_from_document(parse_json(read_file(path), path), path);
}

int run(const Options& options) {
  keep_input(options.predicted, {options.common.report_file});
  keep_input(options.measured, {options.common.report_file});
  const program::Trace predicted = load_trace(options.predicted);
  const program::Trace measured = load_trace(options.measured);
  if (predicted.kind == program::TraceKind::Measured &&
      measured.kind == program::TraceKind::Predicted) {
    throw Error(ErrorCode::InvalidInput,
                options.predicted + ": is a measured trace; the predicted one comes first");
  }
  const program::Trace& carrier = predicted.program.empty() ? measured : predicted;
  if (carrier.program.empty()) {
    throw Error(ErrorCode::InvalidInput,
                options.predicted + ": holds no program; write it with foresail simulate --trace");
  }
  const program::Program program = program::parse_program(
      carrier.program, &carrier == &predicted ? options.predicted : options.measured);
  const report::Comparison comparison = report::compare(program, predicted, measured);
  answer(options.common, report::to_document(comparison), report::to_text(comparison));
  return kOk;
}

}  // namespace

Command add_compare(CLI::App& root) {
  auto options = std::make_shared<Options>();  // shared with the runner below
  CLI::App* app = root.add_subcommand("compare", "a predicted trace against a measured one");
  app->add_option("predicted", options->predicted, "trace of foresail simulate")->required();
  app->add_option("measured", options->measured, "trace of foresail run")->required();
  options->common.add_outputs_to(*app);
  return {app, [options] { return run(*options); }};
}

}  // namespace foresail::cli
