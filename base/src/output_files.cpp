#include "foresail/base/output_files.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>

#include "files_read.h"
#include "foresail/base/error.h"

namespace foresail {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void fail(const fs::path& path, const char* what, const std::string& why) {
  throw Error(ErrorCode::Io, fmt::format("{}: cannot {}: {}", path.string(), what, why));
}

// The errno of what went wrong; 0: nothing did.
int write_to(const fs::path& path, std::string_view text) {
  errno = 0;
  std::ofstream out(path, std::ios::binary);
  if (out) out.write(text.data(), static_cast<std::streamsize>(text.size()));
  if (out) out.flush();
  if (out) return 0;
  return errno == 0 ? EIO : errno;
}

}  // namespace

OutputFiles::OutputFiles(OutputFiles&& other) noexcept
    : over_(other.over_), parts_(std::move(other.parts_)) {
  other.parts_.clear();
}

OutputFiles::~OutputFiles() {
  std::error_code ignored;
  for (const Part& part : parts_) {
    if (!part.temporary.empty()) fs::remove(part.temporary, ignored);
  }
}

void OutputFiles::add(const fs::path& path, std::string_view text) {
  std::error_code nothing;
  Part part;
  part.path = path;
  part.target = fs::is_symlink(path, nothing) ? fs::weakly_canonical(path, nothing) : path;
  if (over_ == Over::NoInput && was_read(part.target)) {
    throw Error(ErrorCode::InvalidInput,
                fmt::format("{}: would be overwritten by its own result", path.string()));
  }
  const fs::path name = fs::weakly_canonical(part.target, nothing);
  for (const Part& other : parts_) {
    if (!other.temporary.empty() && fs::weakly_canonical(other.target, nothing) == name) {
      throw Error(ErrorCode::InvalidInput, fmt::format("{}: named for two results", path.string()));
    }
  }
  if (fs::is_directory(part.target, nothing)) fail(path, "write", "it is a folder");
  if (fs::exists(part.target, nothing) && !fs::is_regular_file(part.target, nothing)) {
    part.text = text;
    parts_.push_back(std::move(part));
    return;
  }
  part.temporary = part.target;
  part.temporary += fmt::format(".{}.{}.part", ::getpid(), parts_.size());
  parts_.push_back(std::move(part));  // removed from here on
  if (const int problem = write_to(parts_.back().temporary, text); problem != 0) {
    fail(path, "write", std::strerror(problem));
  }
}

void OutputFiles::commit() {
  for (Part& part : parts_) {
    if (part.temporary.empty()) {
      const int problem = write_to(part.target, part.text);
      if (problem != 0) fail(part.path, "write", std::strerror(problem));
      continue;
    }
    std::error_code problem;
    fs::rename(part.temporary, part.target, problem);
    if (problem) fail(part.path, "replace", problem.message());
    part.temporary.clear();
  }
  parts_.clear();
}

}  // namespace foresail
