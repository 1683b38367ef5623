#include "meeting_room.h"

#include <algorithm>
#include <utility>

#include "foresail/base/error.h"

namespace foresail::runtime {

MeetingRoom::MeetingRoom(std::string name, int size, std::chrono::milliseconds timeout)
    : name_(std::move(name)),
      size_(size),
      timeout_(timeout),
      offers_(static_cast<std::size_t>(size)),
      letters_(static_cast<std::size_t>(size) * static_cast<std::size_t>(size)),
      has_left_(static_cast<std::size_t>(size), false) {}

void MeetingRoom::wait(Lock& lock, std::string_view what, const std::function<bool()>& is_true,
                       const std::function<bool()>& is_lost) {
  changed_.wait_for(lock, timeout_, [&] { return is_lost() || is_true(); });
  if (is_true()) return;
  throw Error(ErrorCode::Device, name_ + ": " + std::string(what) + ": " +
                                     (is_lost() ? "a rank has left" : "timed out"));
}

void MeetingRoom::wait_for_all(Lock& lock, std::string_view what,
                               const std::function<bool()>& is_true) {
  wait(lock, what, is_true, [&] { return std::ranges::find(has_left_, true) != has_left_.end(); });
}

void MeetingRoom::meet(int rank, Offer offer,
                       const std::function<void(const std::vector<Offer>&)>& read) {
  const std::string_view what = offer.what;
  Lock lock(mutex_);
  // Nobody offers for the next round before all have left this one.
  wait_for_all(lock, what, [&] { return done_ == 0; });
  offers_[static_cast<std::size_t>(rank)] = std::move(offer);
  ++here_;
  changed_.notify_all();
  const std::uint64_t round = round_;
  wait_for_all(lock, what, [&] { return here_ == size_; });
  const auto is_same = [&](const Offer& each) { return each.what == what; };
  if (!std::ranges::all_of(offers_, is_same)) {
    has_left_[static_cast<std::size_t>(rank)] = true;
    changed_.notify_all();
    throw Error(ErrorCode::Device,
                name_ + ": ranks run different operations, one " + std::string(what));
  }
  lock.unlock();
  read(offers_);
  lock.lock();
  if (++done_ == size_) {
    here_ = done_ = 0;
    ++round_;
    changed_.notify_all();
  } else {
    wait_for_all(lock, what, [&] { return round_ != round; });
  }
}

MeetingRoom::Letter& MeetingRoom::letter(int from, int to) {
  return letters_[static_cast<std::size_t>(from * size_ + to)];
}

void MeetingRoom::post(int from, int to, const char* data, std::size_t bytes) {
  Lock lock(mutex_);
  wait(
      lock, "send", [&] { return !letter(from, to).is_there; },
      [&] { return has_left(from) || has_left(to); });
  letter(from, to) = {data, bytes, true};
  changed_.notify_all();
}

void MeetingRoom::await_fetched(int from, int to) {
  Lock lock(mutex_);
  wait(
      lock, "send", [&] { return !letter(from, to).is_there; },
      [&] { return has_left(from) || has_left(to); });
}

void MeetingRoom::fetch(int from, int to, char* data, std::size_t bytes) {
  Lock lock(mutex_);
  wait(
      lock, "recv", [&] { return letter(from, to).is_there; },
      [&] { return has_left(from) || has_left(to); });
  Letter& found = letter(from, to);
  if (found.bytes != bytes) {
    throw Error(ErrorCode::Device, name_ + ": recv of " + std::to_string(bytes) +
                                       " bytes meets a send of " + std::to_string(found.bytes));
  }
  std::copy_n(found.data, bytes, data);
  found = {};
  changed_.notify_all();
}

void MeetingRoom::leave(int rank) {
  const Lock lock(mutex_);
  has_left_[static_cast<std::size_t>(rank)] = true;
  changed_.notify_all();
}

}  // namespace foresail::runtime
