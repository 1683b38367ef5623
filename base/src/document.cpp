#include "foresail/base/document.h"

#include <fmt/format.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <fstream>
#include <sstream>

#include "files_read.h"
#include "foresail/base/error.h"
#include "foresail/base/output_files.h"

namespace foresail {
namespace {

void emit(YAML::Emitter& out, const Document& node) {
  if (node.is_object()) {
    out << YAML::BeginMap;
    for (const auto& [key, value] : node.items()) {
      out << YAML::Key << key << YAML::Value;
      emit(out, value);
    }
    out << YAML::EndMap;
  } else if (node.is_array()) {
    const bool is_flat =
        std::ranges::none_of(node, [](const Document& item) { return item.is_structured(); });
    out << (is_flat ? YAML::Flow : YAML::Block) << YAML::BeginSeq;
    for (const Document& item : node) emit(out, item);
    out << YAML::EndSeq;
  } else if (node.is_string()) {
    // Quoted, so that "1e3", "true" or "null" stay text when read back.
    out << YAML::DoubleQuoted << node.get<std::string>();
  } else if (node.is_null()) {
    out << YAML::Null;
  } else {
    out << node.dump();  // a plain scalar, every digit kept
  }
}

}  // namespace

std::string to_yaml(const Document& document) {
  YAML::Emitter out;
  emit(out, document);
  return std::string(out.c_str()) + "\n";
}

Document parse_json(std::string_view text, const std::string& name) {
  try {
    return Document::parse(text);
  } catch (const Document::parse_error& problem) {
    const auto upto = text.substr(0, std::min(problem.byte, text.size()));
    const auto line = 1 + std::ranges::count(upto, '\n');
    throw Error(ErrorCode::InvalidInput, fmt::format("{}:{}: not valid JSON", name, line));
  }
}

void write_file(const std::filesystem::path& path, std::string_view text) {
  OutputFiles files(OutputFiles::Over::Anything);
  files.add(path, text);
  files.commit();
}

std::string read_file(const std::filesystem::path& path) {
  std::error_code problem;
  if (!std::filesystem::exists(path, problem)) {
    throw Error(ErrorCode::NotFound, fmt::format("{}: no such file", path.string()));
  }
  if (std::filesystem::is_directory(path, problem)) {
    throw Error(ErrorCode::InvalidInput, fmt::format("{}: is a folder, not a file", path.string()));
  }
  std::ifstream in(path, std::ios::binary);
  std::ostringstream text;
  text << in.rdbuf();
  if (!in || text.fail()) {
    const bool is_regular = std::filesystem::is_regular_file(path, problem);
    if (in && is_regular && std::filesystem::file_size(path, problem) == 0) return {};
    if (in && !is_regular) {
      throw Error(ErrorCode::InvalidInput, fmt::format("{}: holds nothing", path.string()));
    }
    throw Error(ErrorCode::Io, fmt::format("{}: cannot be read", path.string()));
  }
  note_read(path);
  return text.str();
}

}  // namespace foresail
