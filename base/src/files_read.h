/// \file
/// Which files this process has read, so that no result takes the place of its own input.
#pragma once

#include <filesystem>

namespace foresail {

/// Remembers a regular file.
void note_read(const std::filesystem::path& path);
/// Whether `path`, by whatever name, is one of them.
bool was_read(const std::filesystem::path& path);

}  // namespace foresail
