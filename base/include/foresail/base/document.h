/// \file
/// The adapter to nlohmann::json: a tree of plain values whose objects are sorted by key, so that
/// `dump()` is canonical. Plans, results and traces go through it on their way to YAML or JSON.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace foresail {

using Document = nlohmann::json;

/// Block-style YAML. Numbers keep every digit that a double needs to be read back equal.
std::string to_yaml(const Document& document);

/// Reads JSON text. Throws Error{InvalidInput} with `name`, line and reason.
Document parse_json(std::string_view text, const std::string& name);

/// Writes the whole file or nothing: a temporary beside it, then a rename. Throws Error{Io}.
void write_file(const std::filesystem::path& path, std::string_view text);

/// Throws Error{NotFound} or Error{Io}, naming the path.
std::string read_file(const std::filesystem::path& path);

}  // namespace foresail
