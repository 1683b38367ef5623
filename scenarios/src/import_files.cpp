// TOML and NeMo's YAML as flat keys.
#include <fmt/format.h>

#include <toml.hpp>

#include <sstream>

#include "foresail/base/error.h"
#include "import_keys.h"

namespace foresail::scenarios {
namespace {

constexpr int kReferencesMax = 16;

std::string scalar_text(const toml::value& value) {
  if (value.is_string()) return value.as_string().str;
  if (value.is_integer()) return std::to_string(value.as_integer());
  if (value.is_boolean()) return value.as_boolean() ? "true" : "false";
  if (value.is_floating()) return fmt::format("{}", value.as_floating());
  return toml::format(value);
}

void flatten(const toml::value& value, const std::string& path, ForeignKeys& keys) {
  if (value.is_table()) {
    for (const auto& [name, inner] : value.as_table()) {
      flatten(inner, path.empty() ? name : path + "." + name, keys);
    }
    return;
  }
  std::string text;
  if (value.is_array()) {
    for (const toml::value& item : value.as_array()) {
      text += (text.empty() ? "" : " ") + scalar_text(item);
    }
  } else {
    text = scalar_text(value);
  }
  keys.add(path, text, static_cast<int>(value.location().line()), value.is_array());
}

// The first line of the library's message, with the place it names.
[[noreturn]] void refuse(const std::string& file, const std::string& message,
                         const toml::source_location& where) {
  std::string first = message.substr(0, message.find('\n'));
  if (const std::size_t tag = first.find("] "); tag != std::string::npos) first.erase(0, tag + 2);
  throw Error(ErrorCode::InvalidInput,
              fmt::format("{}:{}: not valid TOML: {}", file, where.line(), first));
}

std::optional<Yaml> descend(const Yaml& from, std::string_view path) {
  std::optional<Yaml> at = from;
  while (at && !path.empty()) {
    const std::size_t dot = std::min(path.find('.'), path.size());
    if (!at->is_map()) return std::nullopt;
    at = at->find(path.substr(0, dot));
    path.remove_prefix(std::min(dot + 1, path.size()));
  }
  return at;
}

// OmegaConf: ${a.b} from the root, ${.b} beside the key, ${..b} one mapping further out.
std::string resolved(const Yaml& root, const Yaml& value) {
  Yaml at = value;
  for (int depth = 0; depth < kReferencesMax; ++depth) {
    const std::string text = at.is_scalar() ? at.as_string() : std::string();
    if (!text.starts_with("${") || !text.ends_with("}") || text.find(':') != std::string::npos) {
      return text;
    }
    std::string_view path = std::string_view(text).substr(2, text.size() - 3);
    Yaml base = root;
    if (path.starts_with('.')) {
      std::string_view around = at.key();
      while (path.starts_with('.')) {
        path.remove_prefix(1);
        const std::size_t dot = around.rfind('.');
        around = dot == std::string_view::npos ? std::string_view() : around.substr(0, dot);
      }
      const auto found = descend(root, around);
      if (!found) at.fail("leads outside the file");
      base = *found;
    }
    const auto next = descend(base, path);
    if (!next) at.fail(fmt::format("{} leads nowhere", text));
    at = *next;
  }
  value.fail("leads in a circle");
}

void flatten(const Yaml& root, const Yaml& node, ForeignKeys& keys) {
  if (node.is_map()) {
    for (const auto& [name, value] : node.entries()) flatten(root, value, keys);
    return;
  }
  std::string text;
  if (node.is_sequence()) {
    for (const Yaml& item : node.items()) {
      if (item.is_scalar()) text += (text.empty() ? "" : " ") + item.as_string();
    }
  } else if (!node.is_null()) {
    text = resolved(root, node);
  }
  keys.add(node.key(), text, node.line(), node.is_sequence());
}

}  // namespace

ForeignKeys toml_keys(std::string_view text, const std::string& file) {
  ForeignKeys keys(file);
  std::istringstream stream{std::string(text)};
  try {
    flatten(toml::parse(stream, file), {}, keys);
  } catch (const toml::exception& problem) {
    refuse(file, problem.what(), problem.location());
  } catch (const std::exception& problem) {  // numbers beyond all bounds, say
    throw Error(ErrorCode::InvalidInput,
                fmt::format("{}: not valid TOML: {}", file, problem.what()));
  }
  return keys;
}

ForeignKeys nemo_keys(const Yaml& root) {
  ForeignKeys keys(root.file());
  if (!root.is_map()) root.fail("expected a mapping");
  flatten(root, root, keys);
  return keys;
}

}  // namespace foresail::scenarios
