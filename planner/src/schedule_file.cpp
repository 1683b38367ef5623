// Schedules that the user has written: reader, checks, text.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <optional>
#include <string_view>
#include <vector>

#include "foresail/base/error.h"
#include "foresail/base/reference.h"
#include "foresail/planner/schedule.h"
#include "foresail/planner/schedule_order.h"

namespace foresail::planner {
namespace {

using program::Pass;

constexpr int kNumberMax = 999'999;
constexpr int kPasses = 4;
constexpr std::array<Pass, kPasses> kPassOfLetter{Pass::Forward, Pass::Backward,
                                                  Pass::BackwardInput, Pass::BackwardWeight};
constexpr std::string_view kLetters = "FBIW";

std::optional<int> take_number(std::string_view& text) {
  int number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || number < 0 || number > kNumberMax) return std::nullopt;
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  return number;
}

std::optional<SchedulePass> parse_pass(std::string_view text) {
  if (text.empty()) return std::nullopt;
  const std::size_t letter = kLetters.find(text.front());
  if (letter == std::string_view::npos) return std::nullopt;
  text.remove_prefix(1);
  SchedulePass pass;
  pass.pass = kPassOfLetter[letter];
  const auto microbatch = take_number(text);
  if (!microbatch) return std::nullopt;
  pass.microbatch = *microbatch;
  if (text.empty()) return pass;
  if (text.front() != '.') return std::nullopt;
  text.remove_prefix(1);
  const auto chunk = take_number(text);
  if (!chunk || !text.empty()) return std::nullopt;
  pass.chunk = *chunk;
  return pass;
}

/// One stage's text.
PassOrder parse_order(const Yaml& node) {
  const std::string text = node.as_string();
  PassOrder order;
  std::string_view rest = text;
  bool is_joined = false;
  while (true) {
    rest.remove_prefix(std::min(rest.find_first_not_of(" \t\n"), rest.size()));
    if (rest.empty()) break;
    const std::string_view word = rest.substr(0, rest.find_first_of(" \t\n&"));
    rest.remove_prefix(word.size());
    auto pass = parse_pass(word);
    if (!pass) {
      node.fail(
          fmt::format("\"{}\" is not a pass: expected F, B, I or W, then microbatch.chunk, "
                      "as in F0.1",
                      word));
    }
    if (is_joined && (pass->pass == Pass::Forward || pass->pass == Pass::BackwardWeight)) {
      node.fail(fmt::format("& joins a forward with a B or an I, not with {}", to_text(*pass)));
    }
    is_joined = !rest.empty() && rest.front() == '&';
    if (is_joined) rest.remove_prefix(1);
    pass->is_joined = is_joined;
    if (is_joined && pass->pass != Pass::Forward) {
      node.fail(fmt::format("& stands behind a forward, not behind {}", to_text(*pass)));
    }
    order.push_back(*pass);
  }
  if (order.empty()) node.fail("a stage without passes");
  if (is_joined) node.fail(fmt::format("nothing stands behind {}&", to_text(order.back())));
  return order;
}

/// Counts the passes of one stage and refuses what is doubled, missing or too early.
class StageCheck {
 public:
  StageCheck(const WrittenSchedule& schedule, const Yaml& node)
      : schedule_(schedule), node_(node), seen_(size() * kPasses, false) {}

  void run(const PassOrder& order, const program::GlobalStages& global) {
    for (const SchedulePass& pass : order) add(pass, global);
    for (int chunk = 0; chunk < schedule_.chunks; ++chunk) {
      for (int at = 0; at < schedule_.microbatches; ++at) {
        if (global.is_visited(chunk, at, schedule_.microbatches)) finish(at, chunk);
      }
    }
  }

 private:
  std::size_t size() const {
    return static_cast<std::size_t>(schedule_.chunks) *
           static_cast<std::size_t>(schedule_.microbatches);
  }
  std::vector<bool>::reference seen(Pass pass, const SchedulePass& at) {
    const auto row =
        static_cast<std::size_t>(std::ranges::find(kPassOfLetter, pass) - kPassOfLetter.begin());
    return seen_[row * size() +
                 static_cast<std::size_t>(at.chunk) *
                     static_cast<std::size_t>(schedule_.microbatches) +
                 static_cast<std::size_t>(at.microbatch)];
  }
  bool has(Pass pass, const SchedulePass& at) { return seen(pass, at); }

  void add(const SchedulePass& pass, const program::GlobalStages& global) {
    const std::string name = to_text(pass);
    if (!global.is_visited(pass.chunk, pass.microbatch, schedule_.microbatches)) {
      node_.fail(
          fmt::format("{}: with stage_map mirrored the first half of the {} microbatches "
                      "runs through chunk 0, the second half through chunk 1",
                      name, schedule_.microbatches));
    }
    if (has(pass.pass, pass)) node_.fail(name + " stands twice");
    if (pass.pass != Pass::Forward && !has(Pass::Forward, pass)) {
      node_.fail(name + " stands before its forward pass");
    }
    if (pass.pass == Pass::BackwardWeight && !has(Pass::BackwardInput, pass)) {
      node_.fail(name + " stands before its I");
    }
    const bool is_doubled = (pass.pass == Pass::Backward && has(Pass::BackwardInput, pass)) ||
                            (pass.pass == Pass::BackwardInput && has(Pass::Backward, pass));
    if (is_doubled) node_.fail(name + ": the pass is there whole (B) and in halves (I, W)");
    seen(pass.pass, pass) = true;
  }

  void finish(int microbatch, int chunk) {
    const SchedulePass at{Pass::Forward, microbatch, chunk};
    const auto missing = [&](char letter) {
      node_.fail(fmt::format("{}{}.{} is missing", letter, microbatch, chunk));
    };
    if (!has(Pass::Forward, at)) missing('F');
    if (has(Pass::Backward, at)) return;
    if (!has(Pass::BackwardInput, at)) missing('B');
    if (!has(Pass::BackwardWeight, at)) missing('W');
  }

  const WrittenSchedule& schedule_;
  const Yaml& node_;
  std::vector<bool> seen_;
};

WrittenSchedule read_orders(const Yaml& node) {
  WrittenSchedule schedule;
  if (const auto map = node.find("stage_map")) {
    schedule.stage_map = map->as_choice<program::StageMap>();
  }
  const Yaml orders = node.at("order");
  const std::vector<Yaml> stages = orders.items();
  if (stages.empty()) orders.fail("expected the passes of every stage");
  for (const Yaml& stage : stages) {
    for (const SchedulePass& pass : schedule.order.emplace_back(parse_order(stage))) {
      schedule.chunks = std::max(schedule.chunks, pass.chunk + 1);
      schedule.microbatches = std::max(schedule.microbatches, pass.microbatch + 1);
    }
  }
  std::size_t passes = 0;
  for (const PassOrder& order : schedule.order) passes += order.size();
  const auto due = static_cast<std::size_t>(schedule.chunks) *
                   static_cast<std::size_t>(schedule.microbatches) * stages.size();
  // Guards the tables of the checks: a huge number is a typing error, and most passes are missing.
  if (due > 2 * passes) {
    orders.fail(
        fmt::format("{} microbatches through {} chunks of {} stages need more than the {} "
                    "passes that are here",
                    schedule.microbatches, schedule.chunks, stages.size(), passes));
  }
  const int count = static_cast<int>(stages.size());
  if (!program::GlobalStages::is_possible(schedule.stage_map, count, schedule.chunks,
                                          schedule.microbatches)) {
    orders.fail(
        fmt::format("stage_map mirrored needs 2 chunks, an even number of stages and of "
                    "microbatches, not {}, {} and {}",
                    schedule.chunks, count, schedule.microbatches));
  }
  const program::GlobalStages global(schedule.stage_map, count, schedule.chunks);
  for (std::size_t stage = 0; stage < stages.size(); ++stage) {
    StageCheck(schedule, stages[stage]).run(schedule.order[stage], global);
  }
  try {
    simulate(make_schedule(schedule), {});
  } catch (const Error& error) {
    orders.fail(error.what());
  }
  return schedule;
}

}  // namespace

std::string to_text(const SchedulePass& pass) {
  const auto letter =
      static_cast<std::size_t>(std::ranges::find(kPassOfLetter, pass.pass) - kPassOfLetter.begin());
  FORESAIL_EXPECT(letter < kLetters.size());
  return fmt::format("{}{}.{}", kLetters[letter], pass.microbatch, pass.chunk);
}

std::string to_text(const PassOrder& order) {
  std::string text;
  char between = '\0';
  for (const SchedulePass& pass : order) {
    if (between != '\0') text += between;
    text += to_text(pass);
    between = pass.is_joined ? '&' : ' ';
  }
  return text;
}

WrittenSchedule read_written_schedule(const Yaml& node) {
  node.allow_only({"file", "stage_map", "order"});
  const auto file = node.find("file");
  if (!file) return read_orders(node);
  if (node.find("order") || node.find("stage_map")) {
    file->fail("stands beside order or stage_map, which the file holds");
  }
  const Yaml root = load_referenced(*file);
  root.allow_only({"foresail_schedule", "stage_map", "order"});
  root.at("foresail_schedule").as_integer(1, 1);
  return read_orders(root);
}

Document to_document(const WrittenSchedule& schedule) {
  Document orders = Document::array();
  for (const PassOrder& order : schedule.order) orders.push_back(to_text(order));
  return {{"stage_map", to_string(schedule.stage_map)}, {"order", orders}};
}

}  // namespace foresail::planner
