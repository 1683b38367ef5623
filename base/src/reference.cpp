#include "foresail/base/reference.h"

#include "foresail/base/document.h"
#include "foresail/base/error.h"

namespace foresail {

std::filesystem::path referenced_path(const Yaml& node) {
  return std::filesystem::path(node.file()).parent_path() / node.as_string();
}

Yaml load_referenced(const Yaml& node) {
  const std::filesystem::path path = referenced_path(node);
  std::string text;
  try {
    text = read_file(path);
  } catch (const Error& problem) {
    const std::string key = node.key().empty() ? "" : node.key() + ": ";
    throw Error(problem.code(), node.where() + ": " + key + problem.what());
  }
  return Yaml::parse(text, path.string());
}

}  // namespace foresail
