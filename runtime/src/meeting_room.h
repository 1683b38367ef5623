/// \file
/// Where the threads of one group meet: every collective has all members in the room at once.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

namespace foresail::runtime {

/// What one member lets the others read while they are in the room.
struct Offer {
  std::string_view what;  ///< the operation, which must be everybody's
  const char* data = nullptr;
  std::size_t bytes = 0;
  std::vector<std::size_t> part_ends;  ///< of all_to_all_rows: where each peer's part ends
};

class MeetingRoom {
 public:
  /// `name` is for messages.
  MeetingRoom(std::string name, int size, std::chrono::milliseconds timeout);

  /// Calls `read` when all members have offered, and returns when all have read. Throws
  /// Error{Device} after the timeout, when the room has been closed, or if operations differ.
  void meet(int rank, Offer offer, const std::function<void(const std::vector<Offer>&)>& read);

  /// Lays `bytes` for `to` to fetch; they must stay until `await_fetched` returns.
  void post(int from, int to, const char* data, std::size_t bytes);
  void await_fetched(int from, int to);
  void fetch(int from, int to, char* data, std::size_t bytes);

  /// Member `rank` is gone: everybody throws who waits for what it has not done yet, or will.
  /// Members that have no need of it are not disturbed.
  void leave(int rank);

  int size() const { return size_; }

 private:
  struct Letter {
    const char* data = nullptr;
    std::size_t bytes = 0;
    bool is_there = false;
  };
  using Lock = std::unique_lock<std::mutex>;
  /// Until `is_true`; throws when `is_lost` says that it cannot become so.
  void wait(Lock& lock, std::string_view what, const std::function<bool()>& is_true,
            const std::function<bool()>& is_lost);
  void wait_for_all(Lock& lock, std::string_view what, const std::function<bool()>& is_true);
  Letter& letter(int from, int to);
  bool has_left(int rank) const { return has_left_[static_cast<std::size_t>(rank)]; }

  std::string name_;
  int size_;
  std::chrono::milliseconds timeout_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Offer> offers_;
  int here_ = 0;  // who have offered
  int done_ = 0;  // who have read
  std::uint64_t round_ = 0;
  std::vector<Letter> letters_;  // by from and to
  std::vector<bool> has_left_;   // by rank
};

}  // namespace foresail::runtime
