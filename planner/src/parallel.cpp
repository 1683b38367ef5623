#include "foresail/planner/parallel.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

namespace foresail::planner {

void for_each_index(int threads, std::size_t count, const std::function<void(std::size_t)>& work,
                    const std::function<void()>& after) {
  std::atomic<std::size_t> next{0};
  std::mutex guard;
  std::size_t failed = count;
  std::exception_ptr problem;
  const auto run = [&](bool is_caller) {
    for (std::size_t i = next++; i < count; i = next++) {
      try {
        work(i);
      } catch (...) {
        const std::lock_guard lock(guard);
        if (i < failed) problem = std::current_exception();
        failed = std::min(failed, i);
        next = count;
      }
      if (is_caller && after) after();
    }
  };
  std::vector<std::thread> others;
  const auto wanted = std::min<std::size_t>(static_cast<std::size_t>(std::max(1, threads)), count);
  for (std::size_t t = 1; t < wanted; ++t) others.emplace_back(run, false);
  run(true);
  for (std::thread& each : others) each.join();
  if (problem) std::rethrow_exception(problem);
}

}  // namespace foresail::planner
