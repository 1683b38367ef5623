/// \file
/// The files that a command writes: all of them or none.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace foresail {

/// Texts wait in temporaries beside their files, which commit() then takes the place of. What was
/// not committed is removed, so that a command that fails half-way leaves nothing behind.
class OutputFiles {
 public:
  /// What may be replaced: a tool that rewrites what it has read says Anything.
  enum class Over { NoInput, Anything };
  explicit OutputFiles(Over over = Over::NoInput) : over_(over) {}
  OutputFiles(OutputFiles&& other) noexcept;
  OutputFiles& operator=(OutputFiles&&) = delete;
  ~OutputFiles();

  /// What is there already and no regular file (a pipe, a device) is written at commit(); where a
  /// symbolic link points to is replaced, not the link. Throws Error{Io}, naming the path;
  /// Error{InvalidInput} if this process has read the file, or it is named for two results.
  void add(const std::filesystem::path& path, std::string_view text);
  /// Throws Error{Io}: then some may be in place and the others are not.
  void commit();

 private:
  struct Part {
    std::filesystem::path path;       ///< as asked
    std::filesystem::path target;     ///< where links lead
    std::filesystem::path temporary;  ///< empty: `text` is written in place
    std::string text;
  };
  Over over_;
  std::vector<Part> parts_;
};

}  // namespace foresail
