#include "files_read.h"

#include <mutex>
#include <set>

namespace foresail {
namespace {

struct Files {
  std::mutex lock;
  std::set<std::filesystem::path> paths;  // canonical
};

Files& files() {
  static Files all;
  return all;
}

}  // namespace

void note_read(const std::filesystem::path& path) {
  std::error_code problem;
  if (!std::filesystem::is_regular_file(path, problem)) return;
  const std::filesystem::path name = std::filesystem::canonical(path, problem);
  if (problem) return;
  const std::lock_guard guard(files().lock);
  files().paths.insert(name);
}

bool was_read(const std::filesystem::path& path) {
  std::error_code problem;
  const std::filesystem::path name = std::filesystem::canonical(path, problem);
  if (problem) return false;
  const std::lock_guard guard(files().lock);
  return files().paths.contains(name);
}

}  // namespace foresail
