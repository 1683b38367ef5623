#include "foresail/runtime/text_data.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <set>

#include "foresail/base/document.h"
#include "foresail/base/error.h"

namespace foresail::runtime {
namespace {

namespace fs = std::filesystem;

class TextFolder : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::path(testing::TempDir()) /
              ("foresail_text_data_" +
               std::string(testing::UnitTest::GetInstance()->current_test_info()->name()));
    fs::remove_all(folder_);
    fs::create_directories(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }

  fs::path write(const std::string& name, const std::string& text) {
    write_file(folder_ / name, text);
    return folder_ / name;
  }
  static std::string text(std::span<const unsigned char> sample) {
    return {sample.begin(), sample.end()};
  }

  fs::path folder_;
};

TEST_F(TextFolder, EachPassShowsEveryWindowOnce) {
  // 30 bytes, 2 + 1 per window: 10 windows.
  const TextData data(
      {.path = write("a.txt", "abcdefghijklmnopqrstuvwxyz0123"), .sequence_length = 2});
  ASSERT_EQ(data.samples_per_epoch(), 10);
  std::vector<std::string> orders[2];
  for (int pass = 0; pass < 2; ++pass) {
    for (int i = 0; i < 10; ++i) orders[pass].push_back(text(data.sample(10 * pass + i)));
    EXPECT_EQ(std::set<std::string>(orders[pass].begin(), orders[pass].end()).size(), 10u);
  }
  EXPECT_NE(orders[0], orders[1]);
}

TEST_F(TextFolder, SamplesDependOnIndexAndSeedAlone) {
  const fs::path file = write("a.txt", std::string(1000, 'x') + std::string(1000, 'y'));
  const TextData first({.path = file, .sequence_length = 9, .seed = 5});
  const TextData second({.path = file, .sequence_length = 9, .seed = 5});
  second.sample(777);
  for (int i = 0; i < 400; ++i) EXPECT_EQ(text(first.sample(i)), text(second.sample(i)));
}

TEST_F(TextFolder, AFolderIsReadInSortedOrderAndLinksOnce) {
  write("b", "BBBB");
  write("a", "AAAA");
  fs::create_symlink(folder_ / "b", folder_ / "0_link");
  const TextData data({.path = folder_, .sequence_length = 7});
  EXPECT_EQ(data.bytes(), 8);
  EXPECT_EQ(text(data.sample(0)), "BBBBAAAA");
}

TEST_F(TextFolder, ShortTextIsAnErrorThatNamesTheFile) {
  const fs::path file = write("short.txt", "abc");
  try {
    const TextData data({.path = file, .sequence_length = 8});
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::InvalidInput);
    EXPECT_EQ(std::string(error.what()), file.string() +
                                             ": 3 bytes of text, but one sample of "
                                             "sequence_length 8 needs 9");
  }
}

TEST_F(TextFolder, AMissingFileIsAnErrorThatNamesIt) {
  try {
    const TextData data({.path = folder_ / "none.txt"});
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::NotFound);
    EXPECT_NE(std::string(error.what()).find("none.txt"), std::string::npos);
  }
}

}  // namespace
}  // namespace foresail::runtime
