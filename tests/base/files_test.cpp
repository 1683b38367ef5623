// Files that are written together and files that name each other.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "foresail/base/document.h"
#include "foresail/base/error.h"
#include "foresail/base/output_files.h"
#include "foresail/base/reference.h"
#include "foresail/base/yaml_name.h"

namespace foresail {
namespace {

namespace fs = std::filesystem;
using ::testing::StartsWith;

// An empty folder of this test alone.
fs::path folder() {
  const std::string name = ::testing::UnitTest::GetInstance()->current_test_info()->name();
  const fs::path path = fs::path(::testing::TempDir()) / "foresail_files_test" / name;
  fs::remove_all(path);
  fs::create_directories(path);
  return path;
}

std::size_t count(const fs::path& in) {
  return static_cast<std::size_t>(std::distance(fs::directory_iterator(in), {}));
}

TEST(OutputFiles, CommitPutsAllInPlace) {
  const fs::path in = folder();
  write_file(in / "a", "old");
  OutputFiles files;
  files.add(in / "a", "new");
  files.add(in / "b", "more");
  EXPECT_EQ(fs::file_size(in / "a"), 3u);
  files.commit();
  EXPECT_EQ(read_file(in / "a"), "new");
  EXPECT_EQ(read_file(in / "b"), "more");
  EXPECT_EQ(count(in), 2u);
}

TEST(OutputFiles, NoResultTakesThePlaceOfItsOwnInput) {
  const fs::path in = folder();
  write_file(in / "input", "kept");
  EXPECT_EQ(read_file(in / "input"), "kept");
  fs::create_symlink(in / "input", in / "link");
  for (const fs::path& name : {in / "input", in / "." / "input", in / "link"}) {
    OutputFiles files;
    try {
      files.add(name, "lost");
      ADD_FAILURE() << name;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::InvalidInput);
    }
  }
  write_file(in / "input", "rewritten");  // a tool that means it
  EXPECT_EQ(read_file(in / "input"), "rewritten");
}

TEST(OutputFiles, TwoResultsHaveTwoNames) {
  const fs::path in = folder();
  OutputFiles files;
  files.add(in / "a", "one");
  EXPECT_THROW(files.add(in / "." / "a", "two"), Error);
}

TEST(OutputFiles, WithoutCommitNothingIsLeft) {
  const fs::path in = folder();
  write_file(in / "a", "old");
  {
    OutputFiles files;
    files.add(in / "a", "new");
    files.add(in / "b", "more");
  }
  EXPECT_EQ(read_file(in / "a"), "old");
  EXPECT_EQ(count(in), 1u);
}

TEST(OutputFiles, OneThatCannotBeWrittenLeavesNoneOfTheOthers) {
  const fs::path in = folder();
  try {
    OutputFiles files;
    files.add(in / "a", "new");
    files.add(in / "absent" / "b", "more");
    FAIL() << "written";
  } catch (const Error& problem) {
    EXPECT_EQ(problem.code(), ErrorCode::Io);
    EXPECT_THAT(problem.what(), StartsWith((in / "absent" / "b").string() + ": cannot write: "));
  }
  EXPECT_EQ(count(in), 0u);
  EXPECT_THROW(write_file(in, "a folder"), Error);
}

TEST(OutputFiles, ALinkStaysALink) {
  const fs::path in = folder();
  write_file(in / "real", "old");
  fs::create_symlink("real", in / "link");
  write_file(in / "link", "new");
  EXPECT_TRUE(fs::is_symlink(in / "link"));
  EXPECT_EQ(read_file(in / "real"), "new");
}

TEST(Reference, AMissingFileIsBlamedOnTheLineThatNamesIt) {
  const fs::path in = folder();
  write_file(in / "other.yaml", "a: [1\n");
  write_file(in / "one.yaml", "first: 1\nmodel: ./absent.yaml\nbad: other.yaml\nfolder: .\n");
  const Yaml root = Yaml::load(in / "one.yaml");
  const auto complaint = [&](const char* key) -> std::string {
    try {
      load_referenced(root.at(key));
    } catch (const Error& problem) {
      EXPECT_EQ(problem.code(),
                std::string_view(key) == "model" ? ErrorCode::NotFound : ErrorCode::InvalidInput);
      return problem.what();
    }
    return "accepted";
  };
  const std::string file = (in / "one.yaml").string();
  EXPECT_EQ(complaint("model"),
            file + ":2: model: " + (in / "./absent.yaml").string() + ": no such file");
  EXPECT_THAT(complaint("bad"), StartsWith((in / "other.yaml").string() + ":"));
  EXPECT_THAT(complaint("folder"), StartsWith(file + ":4: folder: "));
}

TEST(Name, HasNoLineBreaksAndALimit) {
  const auto complaint = [](const std::string& text) -> std::string {
    try {
      read_name(Yaml::parse("name: \"" + text + "\"", "f").at("name"));
    } catch (const Error& problem) {
      return problem.what();
    }
    return "accepted";
  };
  EXPECT_EQ(complaint("leaf 0, Köln"), "accepted");
  EXPECT_EQ(complaint(""), "f:1: name: is empty");
  EXPECT_EQ(complaint("a\\nb"), "f:1: name: a name with a line break or tab");
  EXPECT_EQ(complaint("a\\tb"), "f:1: name: a name with a line break or tab");
  EXPECT_EQ(complaint("a\\eb"), "f:1: text with a control character");
  EXPECT_EQ(complaint(std::string(257, 'a')), "f:1: name: has more than 256 bytes");
}

}  // namespace
}  // namespace foresail
