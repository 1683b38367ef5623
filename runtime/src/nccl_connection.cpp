#include "nccl_connection.h"

#include <fmt/format.h>

#include <algorithm>
#include <thread>
#include <utility>

#include "foresail/base/error.h"

namespace foresail::runtime {
namespace {

using std::chrono::microseconds;

constexpr const char* kFailures = "nccl/failures";
constexpr const char* kFailure = "nccl/failure";

/// Short operations are polled without sleep, long ones cost no core.
constexpr int kEagerPolls = 64;
constexpr microseconds kPauseMax{500};

bool is_fine(NcclResult result) {
  return result == NcclResult::Success || result == NcclResult::InProgress;
}

}  // namespace

NcclResult run_group(const NcclApi& api, const std::vector<std::function<NcclResult()>>& calls) {
  NcclResult worst = api.group_start();
  if (!is_fine(worst)) return worst;
  for (const auto& call : calls) {
    const NcclResult result = call();
    if (is_fine(worst) && !is_fine(result)) worst = result;
  }
  const NcclResult end = api.group_end();
  return is_fine(worst) ? end : worst;
}

void NcclProcess::add(NcclConnection& connection) {
  const std::scoped_lock lock(mutex_);
  connections_.push_back(&connection);
}

void NcclProcess::remove(NcclConnection& connection) {
  const std::scoped_lock lock(mutex_);
  std::erase(connections_, &connection);
}

std::string NcclProcess::cause_elsewhere() {
  Store& store = *options_.store;
  if (store.add(kFailures, 0) == 0) return {};
  return store.get(kFailure);
}

std::string NcclProcess::announce(const std::string& message) {
  const std::string own = fmt::format("rank {} failed: {}", options_.rank, message);
  try {
    Store& store = *options_.store;
    if (store.add(kFailures, 1) == 1) {
      store.set(kFailure, own);
      return {};
    }
    const std::string first = store.get(kFailure);
    return first == own ? std::string() : first;
  } catch (const Error& lost) {
    return lost.what();  // rank 0, which served the store, has ended
  }
}

void NcclProcess::fail(const std::string& message) {
  const std::string cause = announce(message);
  const std::string whole = cause.empty() ? message : fmt::format("{} ({})", message, cause);
  abort_all(whole);
  throw Error(ErrorCode::Device, whole);
}

void NcclProcess::stop(const std::string& reason) {
  announce(reason);
  abort_all(reason);
}

void NcclProcess::look_for_failures() {
  std::string cause;
  try {
    cause = cause_elsewhere();
  } catch (const Error& lost) {
    cause = lost.what();
  }
  if (cause.empty()) return;
  abort_all(cause);
  throw Error(ErrorCode::Device, "stopped: " + cause);
}

void NcclProcess::check() {
  const std::scoped_lock lock(mutex_);
  if (!failure_.empty()) throw Error(ErrorCode::Device, failure_);
}

NcclWatch& NcclProcess::watch() {
  const std::scoped_lock lock(mutex_);
  if (watch_ == nullptr) watch_ = std::make_unique<NcclWatch>(*this);
  return *watch_;
}

void NcclProcess::abort_all(const std::string& reason) {
  const std::scoped_lock lock(mutex_);
  if (failure_.empty()) failure_ = reason;
  // One group: an abort may wait for the device, which may be inside another communicator's kernel.
  std::vector<std::unique_lock<std::mutex>> locks;
  std::vector<std::function<NcclResult()>> calls;
  for (NcclConnection* connection : connections_) {
    locks.emplace_back(connection->mutex_);
    if (connection->is_aborted_ || connection->comm_ == nullptr) continue;
    connection->is_aborted_ = true;
    connection->reason_ = reason;
    const NcclComm comm = connection->comm_;
    calls.emplace_back([this, comm] { return api().abort(comm); });
  }
  if (!calls.empty()) run_group(api(), calls);
}

NcclConnection::NcclConnection(std::shared_ptr<NcclProcess> process, std::string name)
    : process_(std::move(process)), name_(std::move(name)) {
  process_->add(*this);
}

NcclConnection::~NcclConnection() {
  if (is_watched_) process_->watch().forget(*this);
  close();
  process_->remove(*this);
}

void NcclConnection::demand_alive(const std::string& what) const {
  if (!is_aborted_) return;
  throw Error(ErrorCode::Device, fmt::format("{}: {}: aborted: {}", name_, what, reason_));
}

std::string NcclConnection::explain(NcclResult result) {
  const NcclApi& api = process_->api();
  std::string text = api.get_error_string(result);
  const char* last = api.get_last_error(comm_);
  if (last != nullptr && *last != '\0') text += fmt::format("; NCCL says: {}", last);
  return text;
}

void NcclConnection::judge(const std::string& what, NcclResult result) {
  if (is_fine(result)) return;
  std::string reason;
  {
    const std::scoped_lock lock(mutex_);
    demand_alive(what);
    reason = explain(result);
  }
  process_->fail(fmt::format("{}: {}: {}", name_, what, reason));
}

NcclResult NcclConnection::poll(const std::string& what) {
  NcclResult state = NcclResult::Success;
  NcclResult answer = NcclResult::Success;
  {
    const std::scoped_lock lock(mutex_);
    demand_alive(what);
    if (comm_ == nullptr) return NcclResult::Success;
    answer = process_->api().get_async_error(comm_, &state);
  }
  judge(what, answer);
  judge(what, state);
  return state;
}

void NcclConnection::wait(const std::string& what, const std::function<bool()>& is_done) {
  const auto& options = process_->options();
  const Clock::time_point start = Clock::now();
  Clock::time_point next_look = start + options.flag_interval;
  microseconds pause{1};
  for (int polls = 0; !is_done(); ++polls) {
    const Clock::time_point now = Clock::now();
    if (now >= next_look) {
      process_->look_for_failures();
      next_look = now + options.flag_interval;
    }
    if (now - start >= options.timeout) {
      process_->fail(
          fmt::format("{}: {}: not done after {} ms: a rank has ended, or has issued "
                      "other operations",
                      name_, what, options.timeout.count()));
    }
    if (polls < kEagerPolls) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(pause);
      pause = std::min(2 * pause, kPauseMax);
    }
  }
}

void NcclConnection::wait_until_issued(const std::string& what) {
  wait(what, [&] { return poll(what) == NcclResult::Success; });
}

void NcclConnection::open(const std::function<NcclResult(NcclComm*)>& init) {
  const std::string what = "init";
  NcclResult result = NcclResult::Success;
  {
    const std::scoped_lock lock(mutex_);
    demand_alive(what);
    FORESAIL_EXPECT(comm_ == nullptr);
    result = init(&comm_);
  }
  judge(what, result);
  wait_until_issued(what);
  FORESAIL_EXPECT(comm_ != nullptr);
}

void NcclConnection::split(int color, int key, NcclConnection* into, NcclConfig* config) {
  const std::string what = into == nullptr ? "split" : "split of " + into->name_;
  NcclResult result = NcclResult::Success;
  {
    const std::scoped_lock lock(mutex_);
    demand_alive(what);
    made_ = nullptr;
    result = process_->api().split(comm_, color, key, &made_, config);
  }
  judge(what, result);
  // The parent is busy until NCCL has written the new handle, and that is busy until it is there.
  wait_until_issued(what);
  if (into == nullptr) return;
  {
    const std::scoped_lock lock(into->mutex_);
    into->comm_ = __atomic_load_n(&made_, __ATOMIC_ACQUIRE);  // NCCL's thread wrote it
    FORESAIL_EXPECT(into->comm_ != nullptr);
  }
  into->wait_until_issued("init");
}

void NcclConnection::run(const std::string& what, std::size_t bytes, const Call& call) {
  const std::string whole = fmt::format("{} of {} bytes", what, bytes);
  StreamSource& streams = *process_->options().streams;
  void* stream = streams.current();
  NcclResult result = NcclResult::Success;
  {
    const std::scoped_lock lock(mutex_);
    demand_alive(whole);
    result = call(comm_, static_cast<NcclStream>(stream));
  }
  judge(whole, result);
  wait_until_issued(whole);
  auto is_done = streams.mark_end(stream);
  if (!is_done) return finish(whole);
  is_watched_ = true;
  process_->watch().add({.connection = this, .what = whole, .is_done = std::move(is_done)});
}

void NcclConnection::finish(const std::string& what) {
  StreamSource& streams = *process_->options().streams;
  void* stream = streams.current();
  wait(what, [&] {
    poll(what);  // throws what has gone wrong since
    return streams.is_done(stream);
  });
}

void NcclConnection::ask(const std::string& what, const std::function<NcclResult(NcclComm)>& call) {
  NcclResult result = NcclResult::Success;
  {
    const std::scoped_lock lock(mutex_);
    demand_alive(what);
    result = call(comm_);
  }
  judge(what, result);
}

void NcclConnection::ask_at_the_end(const char* what,
                                    const std::function<NcclResult(NcclComm)>& call) noexcept {
  NcclResult result = NcclResult::Success;
  {
    const std::scoped_lock lock(mutex_);
    if (is_aborted_ || comm_ == nullptr) return;
    result = call(comm_);
  }
  if (is_fine(result)) return;
  process_->stop(fmt::format("{}: {}: {}", name_, what, process_->api().get_error_string(result)));
}

void NcclConnection::close() noexcept {
  const std::string what = "finalize";
  try {
    {
      const std::scoped_lock lock(mutex_);
      if (is_aborted_ || comm_ == nullptr) return;
    }
    ask(what, [&](NcclComm comm) { return process_->api().finalize(comm); });
    wait_until_issued(what);
    const std::scoped_lock lock(mutex_);
    if (!is_aborted_) process_->api().destroy(std::exchange(comm_, nullptr));
  } catch (const Error&) {
    // The other ranks have been told, and every communicator of the process is aborted.
  }
}

}  // namespace foresail::runtime
