#include "mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "foresail/base/error.h"

namespace foresail::runtime {
namespace {

[[noreturn]] void fail(const std::filesystem::path& path, int problem) {
  const ErrorCode code = problem == ENOENT ? ErrorCode::NotFound : ErrorCode::Io;
  throw Error(code, path.string() + ": " + std::strerror(problem));
}

/// Closes at the end of the scope; a mapping stays.
struct Descriptor {
  int value = -1;
  ~Descriptor() {
    if (value >= 0) ::close(value);
  }
};

}  // namespace

MappedFile::MappedFile(const std::filesystem::path& path) : path_(path) {
  const Descriptor file{::open(path.c_str(), O_RDONLY | O_CLOEXEC)};
  if (file.value < 0) fail(path, errno);
  struct stat status {};
  if (::fstat(file.value, &status) != 0) fail(path, errno);
  if (!S_ISREG(status.st_mode)) throw Error(ErrorCode::Io, path.string() + ": not a regular file");
  if (status.st_size == 0) return;
  const auto size = static_cast<std::size_t>(status.st_size);
  void* start = ::mmap(nullptr, size, PROT_READ, MAP_SHARED, file.value, 0);
  if (start == MAP_FAILED) fail(path, errno);
  bytes_ = {static_cast<const unsigned char*>(start), size};
}

MappedFile::~MappedFile() {
  if (!bytes_.empty()) ::munmap(const_cast<unsigned char*>(bytes_.data()), bytes_.size());
}

}  // namespace foresail::runtime
