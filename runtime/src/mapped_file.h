/// \file
/// A file's bytes without reading them: mapped, read-only.
#pragma once

#include <filesystem>
#include <span>

namespace foresail::runtime {

class MappedFile {
 public:
  /// Throws Error{NotFound} or Error{Io} naming the path.
  explicit MappedFile(const std::filesystem::path& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  /// As long as the file was when it was opened; nobody may shorten it while it is mapped.
  std::span<const unsigned char> bytes() const { return bytes_; }
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
  std::span<const unsigned char> bytes_;
};

}  // namespace foresail::runtime
