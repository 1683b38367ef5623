// The stores by which ranks meet: one contract for three of them.
#include "foresail/runtime/store.h"

#include <gmock/gmock.h>

#include <thread>

#include "foresail/base/error.h"
#include "rank_process.h"
#include "scratch_folder.h"
#include "worker_environment.h"
#include "worker_store.h"

namespace foresail::testing {
namespace {

using runtime::Store;
using runtime::StoreRole;
using std::chrono::milliseconds;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

constexpr milliseconds kLimit{5000};
constexpr milliseconds kShort{200};

/// Two connections; of a store in memory, which is one object, the same twice.
void expect_contract(Store& one, Store& other) {
  EXPECT_FALSE(other.has("a"));
  std::thread later([&] {
    std::this_thread::sleep_for(milliseconds(30));
    one.set("a", std::string("\0binary\r\n", 9));
  });
  EXPECT_EQ(other.get("a"), std::string("\0binary\r\n", 9));
  later.join();
  EXPECT_TRUE(other.has("a"));
  one.set("a", "");
  EXPECT_EQ(other.get("a"), "");
  EXPECT_EQ(one.add("n", 2), 2);
  EXPECT_EQ(other.add("n", -5), -3);
  one.set("n", "apart from the counter");
  EXPECT_EQ(one.add("n", 0), -3);
  EXPECT_EQ(other.get("n"), "apart from the counter");
}

class RedisStoreTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!RedisServer::is_installed()) GTEST_SKIP() << "redis-server is not installed";
    server_.emplace(cli::free_port(), test::scratch_folder());
  }
  std::unique_ptr<Store> connect(const std::string& job, StoreRole role = StoreRole::Client,
                                 milliseconds get_timeout = kLimit) const {
    return runtime::make_redis_store({.host = "127.0.0.1",
                                      .port = server_->port(),
                                      .job = job,
                                      .role = role,
                                      .timeout = kLimit,
                                      .get_timeout = get_timeout});
  }
  std::optional<RedisServer> server_;
};

TEST(MemoryStore, KeepsTheContract) {
  runtime::MemoryStore store(kLimit);
  expect_contract(store, store);
}

TEST(TcpStore, KeepsTheContractAndJobsApart) {
  const int port = cli::free_port();
  const auto connect = [port](StoreRole role, const std::string& prefix) {
    return runtime::make_tcp_store({.host = "127.0.0.1",
                                    .port = port,
                                    .role = role,
                                    .prefix = prefix,
                                    .timeout = kLimit,
                                    .get_timeout = kLimit});
  };
  const auto server = connect(StoreRole::Server, "one/");
  const auto client = connect(StoreRole::Client, "one/");
  expect_contract(*server, *client);
  EXPECT_FALSE(connect(StoreRole::Client, "two/")->has("a"));
}

TEST(TcpStore, APortThatIsTakenIsNamed) {
  const int port = cli::free_port();
  const runtime::TcpStoreOptions options{
      .host = "127.0.0.1", .port = port, .role = StoreRole::Server, .timeout = kLimit};
  const auto first = runtime::make_tcp_store(options);
  EXPECT_THAT([&] { runtime::make_tcp_store(options); },
              ThrowsMessage<Error>(HasSubstr("cannot listen on port " + std::to_string(port) +
                                             ": Address already in use")));
}

TEST(TcpStore, AServerThatIsNotThereIsGivenUpInTime) {
  const int port = cli::free_port();
  EXPECT_THAT(
      [&] { runtime::make_tcp_store({.host = "127.0.0.1", .port = port, .timeout = kShort}); },
      ThrowsMessage<Error>(HasSubstr("cannot be reached within 200 ms: Connection refused")));
}

TEST(TcpStore, AHostThatDropsPacketsIsGivenUpInTime) {
  // RFC 5737: 192.0.2.0/24 belongs to nobody. A plain connect() would take minutes.
  EXPECT_THAT(
      [] { runtime::make_tcp_store({.host = "192.0.2.1", .port = 29500, .timeout = kShort}); },
      ThrowsMessage<Error>(HasSubstr("store at 192.0.2.1:29500: cannot be reached within")));
}

TEST_F(RedisStoreTest, KeepsTheContractAndJobsApart) {
  const auto one = connect("job");
  const auto other = connect("job");
  expect_contract(*one, *other);
  EXPECT_FALSE(connect("another job")->has("a"));
}

TEST_F(RedisStoreTest, AJobsValuesGoWithItsServerRoleOrAfterAnHour) {
  auto server = connect("job", StoreRole::Server);
  connect("job")->set("a", "1");
  EXPECT_THAT(server_->ask("EXISTS foresail/job"), HasSubstr("1"));
  const int lifetime = std::stoi(server_->ask("TTL foresail/job"));
  EXPECT_GT(lifetime, 3500);
  EXPECT_LE(lifetime, 3600);
  server.reset();
  EXPECT_THAT(server_->ask("EXISTS foresail/job"), HasSubstr("0"));
}

TEST_F(RedisStoreTest, AGetThatNobodyAnswersEnds) {
  const auto store = connect("job", StoreRole::Client, kShort);
  EXPECT_THAT([&] { store->get("a"); }, ThrowsMessage<Error>(HasSubstr("nobody set \"a\"")));
}

TEST_F(RedisStoreTest, AServerThatDiesIsAnError) {
  const auto store = connect("job");
  server_->kill();
  EXPECT_THAT([&] { store->set("a", "1"); }, ThrowsMessage<Error>(HasSubstr("store at redis://")));
}

TEST(StoreAddress, IsReadFromTheOptionOrTheEnvironment) {
  cli::RankEnvironment environment;
  environment.master_host = "n0";
  environment.master_port = 1234;
  environment.job = "slurm-7.0";
  EXPECT_EQ(cli::parse_store("", environment).text(), "n0:1234");
  EXPECT_EQ(cli::parse_store("tcp://h:99", environment).text(), "h:99");
  EXPECT_EQ(cli::parse_store("tcp://[fe80::1]:99", environment).host, "fe80::1");
  EXPECT_EQ(cli::parse_store("tcp://[fe80::1]:99", environment).text(), "[fe80::1]:99");
  EXPECT_EQ(cli::parse_store("redis://[::1]/j", environment).text(), "redis://[::1]:6379");
  const cli::StoreAddress redis = cli::parse_store("redis://h", environment);
  EXPECT_EQ(redis.text(), "redis://h:6379");
  EXPECT_EQ(redis.job, "slurm-7.0");
  EXPECT_EQ(cli::parse_store("redis://h:1/mine", environment).job, "mine");
  for (const char* wrong :
       {"h:1", "http://h:1", "tcp://h", "tcp://:1", "redis://h:x", "redis://h:70000",
        "tcp://[::1:9", "tcp://[::1]9", "tcp://[]:9", "tcp://::1:9"}) {
    EXPECT_THROW(cli::parse_store(wrong, environment), Error) << wrong;
  }
  environment.job.clear();
  EXPECT_THAT([&] { cli::parse_store("redis://h", environment); },
              ThrowsMessage<Error>(HasSubstr("name this one, as redis://HOST:PORT/JOB")));
}

}  // namespace
}  // namespace foresail::testing
