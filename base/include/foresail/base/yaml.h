/// \file
/// Reading of YAML with file, line and key in every complaint. Every reader of the project goes
/// through this class, so that bad input reads the same everywhere:
///
///     scenario.yaml:12: layout.tp: expected an integer, got "eight"
#pragma once

#include <cstdint>
#include <filesystem>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "foresail/base/document.h"
#include "foresail/base/names.h"
#include "foresail/base/units.h"

namespace foresail {

/// A node of a parsed YAML file together with where it stands. Cheap to copy; the parsed tree is
/// shared by all handles into it (hence the shared_ptr). Anchors and aliases are followed.
/// All failures throw Error{InvalidInput} (a missing file: Error{NotFound}).
class Yaml {
 public:
  static Yaml load(const std::filesystem::path& path);
  static Yaml parse(std::string_view text, const std::string& name);

  bool is_map() const;
  bool is_sequence() const;
  bool is_scalar() const;
  bool is_null() const;

  /// Refuses a map with a key outside `keys`, naming the nearest known one. Also refuses
  /// duplicated keys and anything that is not a map.
  void allow_only(std::initializer_list<std::string_view> keys) const;

  /// The value of a required key.
  Yaml at(std::string_view key) const;
  /// The value of an optional key; an explicit null counts as absent.
  std::optional<Yaml> find(std::string_view key) const;
  /// Elements of a sequence.
  std::vector<Yaml> items() const;
  /// Keys and values of a map, in file order.
  std::vector<std::pair<std::string, Yaml>> entries() const;

  /// This map with the keys of the map `change` in place of its own: maps in maps are merged too,
  /// anything else is replaced. Every value remembers the file and line that it stands on.
  Yaml merged(const Yaml& change) const;
  /// This map without `keys`.
  Yaml without(std::initializer_list<std::string_view> keys) const;

  std::string as_string() const;
  std::int64_t as_integer() const;
  /// An integer in [low, high].
  std::int64_t as_integer(std::int64_t low, std::int64_t high) const;
  /// A finite number.
  double as_number() const;
  bool as_bool() const;
  Duration as_duration() const;
  Bytes as_bytes() const;
  Bandwidth as_bandwidth() const;
  FlopRate as_flop_rate() const;

  /// One of a closed choice, by its name table.
  template <class E>
  E as_choice() const {
    const std::string text = as_string();
    const std::optional<E> value = from_string<E>(text);
    if (!value) fail('"' + text + "\" is not one of " + choices<E>());
    return *value;
  }

  /// The whole subtree as plain values (numbers and booleans recognised as in YAML 1.2 core).
  Document to_document() const;

  /// "scenario.yaml:12"
  std::string where() const;
  /// "layout.tp"; empty at the root.
  const std::string& key() const { return key_; }
  /// The file this node was read from (or the name given to parse).
  const std::string& file() const;
  int line() const;

  /// Throws Error{InvalidInput}: "<file>:<line>: <key>: <message>".
  [[noreturn]] void fail(const std::string& message) const;

 private:
  struct Tree;
  struct Node;
  Yaml(std::shared_ptr<const Tree> tree, std::shared_ptr<const Node> node, std::string key);

  std::shared_ptr<const Tree> tree_;  // shared by every handle into one file
  std::shared_ptr<const Node> node_;
  std::string key_;
};

}  // namespace foresail
