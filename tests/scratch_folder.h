/// \file
/// Where a test may write.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>

namespace foresail::test {

/// A folder of the running TEST alone, in that of its process (main.cpp), which goes with it.
inline std::filesystem::path scratch_folder() {
  const std::filesystem::path folder =
      std::filesystem::path(::testing::TempDir()) /
      ::testing::UnitTest::GetInstance()->current_test_info()->name();
  std::filesystem::create_directories(folder);
  return folder;
}

}  // namespace foresail::test
