/// \file
/// What a run writes when it is over is checked before it starts.
#pragma once

#include <filesystem>
#include <string>

namespace foresail::cli {

/// What stands at `path`, or would when it is made, is a folder that can be written to. Throws
/// Error{InvalidInput} that names `option`.
void demand_folder(const char* option, const std::filesystem::path& path);

/// A file of that name can be written, if there is a name. Throws as demand_folder.
void demand_file(const char* option, const std::string& name);

}  // namespace foresail::cli
