/// \file
/// How long a rank takes until its first step, by phase.
#pragma once

#include <chrono>
#include <string>
#include <utility>
#include <vector>

#include "foresail/base/document.h"
#include "worker_rendezvous.h"

namespace foresail::cli {

/// The phases of a start, in seconds and in questions to the store. Runs from its construction.
class StartClock {
 public:
  /// What went before, since the last call, was `phase`; `use` is what it asked of the store.
  void end(const std::string& phase, const StoreUse& use);
  /// The same, in two: time at the store is `asking`, the rest is `phase`.
  void end_apart(const std::string& asking, const std::string& phase, const StoreUse& use);

  /// "store 1.2 ms, digests 0.3 ms, ...; 57 questions to the store"
  std::string to_text() const;
  /// {"store_s": 0.0012, ..., "store_operations": 57}
  Document to_document() const;

 private:
  using Clock = std::chrono::steady_clock;
  Clock::time_point since_ = Clock::now();
  std::vector<std::pair<std::string, double>> phases_;
  std::int64_t operations_ = 0;
};

/// By key, the most of all ranks.
Document slowest(const std::vector<Document>& starts);

}  // namespace foresail::cli
