// The main of every test: GoogleTest's, with a scratch folder of this process's own behind
// testing::TempDir(). ctest runs each TEST as a process, many beside each other: no two meet in a
// file.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <string>
#include <system_error>

int main(int count, char** arguments) {
  namespace fs = std::filesystem;
  testing::InitGoogleTest(&count, arguments);
  std::string folder = (fs::temp_directory_path() / "foresail_test_XXXXXX").string();
  if (mkdtemp(folder.data()) == nullptr) {
    std::cerr << folder << ": cannot make a scratch folder\n";
    return EXIT_FAILURE;
  }
  setenv("TEST_TMPDIR", folder.c_str(), 1);
  const int status = RUN_ALL_TESTS();
  std::error_code left;
  fs::remove_all(folder, left);
  return status;
}
