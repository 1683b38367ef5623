#include "worker_start.h"

#include <fmt/format.h>

#include <algorithm>

#include "foresail/base/quantity.h"

namespace foresail::cli {
namespace {

double seconds(std::chrono::nanoseconds time) {
  return std::chrono::duration<double>(time).count();
}

}  // namespace

void StartClock::end(const std::string& phase, const StoreUse& use) {
  const auto now = Clock::now();
  phases_.emplace_back(phase, seconds(now - std::exchange(since_, now)));
  operations_ += use.operations;
}

void StartClock::end_apart(const std::string& asking, const std::string& phase,
                           const StoreUse& use) {
  const auto now = Clock::now();
  phases_.emplace_back(asking, seconds(use.time));
  phases_.emplace_back(phase, seconds(now - std::exchange(since_, now) - use.time));
  operations_ += use.operations;
}

std::string StartClock::to_text() const {
  std::string text;
  for (const auto& [phase, time] : phases_) {
    text += fmt::format("{} {}, ", phase, foresail::to_text(duration_from_seconds(time)));
  }
  return text + fmt::format("{} questions to the store", operations_);
}

Document StartClock::to_document() const {
  Document document{{"store_operations", operations_}};
  for (const auto& [phase, time] : phases_) document[phase + "_s"] = time;
  return document;
}

Document slowest(const std::vector<Document>& starts) {
  Document most = Document::object();
  for (const Document& start : starts) {
    for (const auto& [key, value] : start.items()) {
      if (!most.contains(key) || most[key] < value) most[key] = value;
    }
  }
  return most;
}

}  // namespace foresail::cli
