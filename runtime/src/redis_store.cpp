#include <hiredis/hiredis.h>
#include <sys/time.h>

#include <algorithm>
#include <thread>
#include <vector>

#include "foresail/base/error.h"
#include "foresail/runtime/store.h"
#include "reach.h"

namespace foresail::runtime {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

/// A waiting `get` asks again after kFirstPause, then after twice as long each time.
constexpr milliseconds kFirstPause{1};
constexpr milliseconds kLastPause{100};
/// What a job that died left behind goes by itself.
constexpr const char* kLifetimeSeconds = "3600";

timeval to_timeval(milliseconds time) {
  timeval value{};
  value.tv_sec = static_cast<time_t>(time.count() / 1000);
  value.tv_usec = static_cast<suseconds_t>(time.count() % 1000 * 1000);
  return value;
}

struct ReplyDeleter {
  void operator()(redisReply* reply) const { freeReplyObject(reply); }
};
using Reply = std::unique_ptr<redisReply, ReplyDeleter>;

struct ContextDeleter {
  void operator()(redisContext* context) const { redisFree(context); }
};

/// Values are the fields "v/KEY" of one hash, counters the fields "n/KEY".
class RedisStore : public Store {
 public:
  explicit RedisStore(const RedisStoreOptions& options)
      : where_("store at redis://" + options.host + ":" + std::to_string(options.port)),
        hash_("foresail/" + options.job),
        role_(options.role),
        get_timeout_(options.get_timeout) {
    wait_until_reachable({options.host, options.port}, options.timeout, where_);
    context_.reset(
        redisConnectWithTimeout(options.host.c_str(), options.port, to_timeval(options.timeout)));
    if (context_ == nullptr || context_->err != 0) fail("connect");
    redisSetTimeout(context_.get(), to_timeval(options.timeout));
    run({"PING"});
  }

  ~RedisStore() override {
    if (role_ != StoreRole::Server) return;
    // The job is over: with it go its values. A server that died has none.
    const Reply reply(static_cast<redisReply*>(
        redisCommand(context_.get(), "DEL %b", hash_.data(), hash_.size())));
  }
  RedisStore(const RedisStore&) = delete;
  RedisStore& operator=(const RedisStore&) = delete;

  void set(const std::string& key, const std::string& value) override {
    run({"HSET", hash_, "v/" + key, value});
    run({"EXPIRE", hash_, kLifetimeSeconds});
  }

  std::string get(const std::string& key) override {
    const auto end = Clock::now() + get_timeout_;
    milliseconds pause = kFirstPause;
    for (;;) {
      const Reply reply = run({"HGET", hash_, "v/" + key});
      if (reply->type == REDIS_REPLY_STRING) return {reply->str, reply->len};
      if (Clock::now() >= end) {
        throw Error(ErrorCode::Device, where_ + ": nobody set \"" + key + "\" in time");
      }
      std::this_thread::sleep_for(pause);
      pause = std::min(2 * pause, kLastPause);
    }
  }

  std::int64_t add(const std::string& key, std::int64_t delta) override {
    const std::int64_t sum = run({"HINCRBY", hash_, "n/" + key, std::to_string(delta)})->integer;
    run({"EXPIRE", hash_, kLifetimeSeconds});
    return sum;
  }

  bool has(const std::string& key) override {
    return run({"HEXISTS", hash_, "v/" + key})->integer == 1;
  }

 private:
  Reply run(const std::vector<std::string>& words) {
    std::vector<const char*> starts;
    std::vector<std::size_t> sizes;
    for (const std::string& word : words) {
      starts.push_back(word.data());
      sizes.push_back(word.size());
    }
    Reply reply(static_cast<redisReply*>(redisCommandArgv(
        context_.get(), static_cast<int>(words.size()), starts.data(), sizes.data())));
    const std::string what = words.size() > 2 ? words[0] + " " + words[2] : words[0];
    if (reply == nullptr) fail(what);
    if (reply->type == REDIS_REPLY_ERROR) {
      throw Error(ErrorCode::Device,
                  where_ + ": " + what + ": " + std::string(reply->str, reply->len));
    }
    return reply;
  }

  [[noreturn]] void fail(const std::string& what) const {
    const char* reason = context_ == nullptr ? "no memory" : context_->errstr;
    throw Error(ErrorCode::Device, where_ + ": " + what + ": " + reason);
  }

  std::string where_;
  std::string hash_;
  StoreRole role_;
  milliseconds get_timeout_;
  std::unique_ptr<redisContext, ContextDeleter> context_;
};

}  // namespace

std::unique_ptr<Store> make_redis_store(const RedisStoreOptions& options) {
  return std::make_unique<RedisStore>(options);
}

}  // namespace foresail::runtime
