#include "foresail/program/profile.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "foresail/base/document.h"
#include "foresail/base/error.h"

namespace foresail::program {
namespace {

using testing::EndsWith;

std::filesystem::path temporary(const std::string& name) {
  const std::string test = testing::UnitTest::GetInstance()->current_test_info()->name();
  return std::filesystem::path(testing::TempDir()) / ("foresail_" + test + "_" + name);
}

Profile example() {
  Profile profile;
  profile.host = "Some Processor: 2.1 GHz";
  profile.date = "2026-11-29";
  profile.cores = 2;
  profile.processes = 4;
  profile.blas = "openblas";
  Kernel gemm;
  gemm.kind = KernelKind::Gemm;
  gemm.dtype = DType::Fp32;
  gemm.m = 64;
  gemm.n = 128;
  gemm.k = 256;
  gemm.flops = Flops(4194304);
  gemm.bytes = Bytes(196608);
  Kernel attention;
  attention.kind = KernelKind::Attention;
  attention.batch = 3;
  attention.heads = 4;
  attention.query_length = attention.key_length = 32;
  attention.head_size = 16;
  attention.is_backward = true;
  attention.flops = Flops(0.1);
  profile.kernels = {{gemm, Duration(123'456'789)}, {attention, Duration(1)}};
  profile.transfers = {{"all_reduce", 4, Bytes(1 << 20), Duration(5'000'000)},
                       {"send", 2, Bytes(0), Duration(0)}};
  profile.op_overhead = Duration(7'500'000);
  profile.step_overhead = Duration(2'000'000'000);
  return profile;
}

std::string complaint(const std::string& from, const std::string& to) {
  const std::filesystem::path path = temporary("bad_profile.yaml");
  save_profile(example(), path);
  std::string text = read_file(path);
  const std::size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from << " in\n" << text;
  write_file(path, text.replace(at, from.size(), to));
  try {
    load_profile(path);
  } catch (const Error& error) {
    return error.what();
  }
  return "accepted";
}

TEST(Profile, RoundTripsToThePicosecond) {
  const std::filesystem::path path = temporary("profile.yaml");
  save_profile(example(), path);
  const Profile read = load_profile(path);
  const Profile wrote = example();
  EXPECT_EQ(read.host, wrote.host);
  EXPECT_EQ(read.date, wrote.date);
  EXPECT_EQ(read.cores, wrote.cores);
  EXPECT_EQ(read.processes, wrote.processes);
  EXPECT_EQ(read.blas, wrote.blas);
  ASSERT_EQ(read.kernels.size(), wrote.kernels.size());
  for (std::size_t i = 0; i < wrote.kernels.size(); ++i) {
    EXPECT_EQ(read.kernels[i].kernel, wrote.kernels[i].kernel);
    EXPECT_EQ(read.kernels[i].time, wrote.kernels[i].time);
  }
  ASSERT_EQ(read.transfers.size(), wrote.transfers.size());
  for (std::size_t i = 0; i < wrote.transfers.size(); ++i) {
    EXPECT_EQ(read.transfers[i].kind, wrote.transfers[i].kind);
    EXPECT_EQ(read.transfers[i].ranks, wrote.transfers[i].ranks);
    EXPECT_EQ(read.transfers[i].bytes, wrote.transfers[i].bytes);
    EXPECT_EQ(read.transfers[i].time, wrote.transfers[i].time);
  }
  EXPECT_EQ(read.op_overhead, wrote.op_overhead);
  EXPECT_EQ(read.step_overhead, wrote.step_overhead);
}

TEST(Profile, OfADeviceRoundTripsAndThatOfAHostHasNoKeyOfIt) {
  const std::filesystem::path path = temporary("profile.yaml");
  save_profile(example(), path);
  EXPECT_EQ(read_file(path).find("device"), std::string::npos);
  EXPECT_EQ(read_file(path).find("launch_overhead"), std::string::npos);
  Profile wrote = example();
  wrote.device = "NVIDIA H200, 139.8 GiB";
  wrote.launch_overhead = Duration(4'250'001);
  save_profile(wrote, path);
  EXPECT_EQ(load_profile(path).device, wrote.device);
  EXPECT_EQ(load_profile(path).launch_overhead, wrote.launch_overhead);
}

TEST(Profile, NamesLineAndKeyOfWhatIsWrong) {
  EXPECT_THAT(complaint("7.5 us", "7.5"), testing::HasSubstr("op_overhead"));
  EXPECT_THAT(complaint("7.5 us", "7.5"), testing::HasSubstr("no unit"));
  EXPECT_THAT(complaint("send", "teleport"), testing::HasSubstr("not one of send"));
  EXPECT_THAT(complaint("ranks: 4", "ranks: 1"), testing::HasSubstr("ranks"));
  EXPECT_THAT(complaint("cores: 2", "kores: 2"), testing::HasSubstr("kores"));
  EXPECT_THAT(complaint("flops: 0.1", "flops: -0.1"), EndsWith("must not be below 0"));
}

TEST(Profile, SaysThatAFileIsMissing) {
  try {
    load_profile(temporary("no_such_profile.yaml"));
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::NotFound);
  }
}

}  // namespace
}  // namespace foresail::program
