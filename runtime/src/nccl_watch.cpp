#include "nccl_watch.h"

#include <fmt/format.h>

#include "foresail/base/error.h"
#include "nccl_connection.h"

namespace foresail::runtime {

NcclWatch::NcclWatch(NcclProcess& process) : process_(process), thread_([this] { run(); }) {}

NcclWatch::~NcclWatch() {
  {
    const std::scoped_lock lock(mutex_);
    is_closing_ = true;
  }
  changed_.notify_one();
  thread_.join();
}

void NcclWatch::add(Queued operation) {
  {
    const std::scoped_lock lock(mutex_);
    if (queued_.empty()) progress_ = Clock::now();
    queued_.push_back(std::move(operation));
  }
  changed_.notify_one();
}

void NcclWatch::forget(const NcclConnection& connection) {
  const std::scoped_lock lock(mutex_);
  queued_.remove_if([&](const Queued& each) { return each.connection == &connection; });
}

void NcclWatch::run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return is_closing_ || !queued_.empty(); });
    // A pause first: most operations end before anybody need look.
    changed_.wait_for(lock, process_.options().flag_interval, [&] { return is_closing_; });
    if (is_closing_) return;
    try {
      look();
    } catch (const Error&) {
      queued_.clear();  // everything has been aborted, and check() says why
    } catch (const std::exception& error) {
      process_.stop(error.what());  // the device has failed
      queued_.clear();
    }
  }
}

void NcclWatch::look() {
  const std::size_t ended = queued_.remove_if([](const Queued& each) { return each.is_done(); });
  if (ended > 0) progress_ = Clock::now();
  if (queued_.empty()) return;
  for (const Queued& each : queued_) each.connection->look(each.what);
  process_.look_for_failures();
  const auto timeout = process_.options().timeout;
  if (Clock::now() - progress_ < timeout) return;
  const Queued& first = queued_.front();
  process_.fail(
      fmt::format("{}: {}: not done, and nothing else, for {} ms: a rank has ended, or has issued "
                  "other operations",
                  first.connection->name(), first.what, timeout.count()));
}

}  // namespace foresail::runtime
