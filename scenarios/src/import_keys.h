/// \file
/// What another framework's job file says, flat: key -> text and line. The readers of import.h take
/// what they know; what is left can be shown.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "foresail/base/yaml.h"

namespace foresail::scenarios {

class ForeignKeys {
 public:
  explicit ForeignKeys(std::string file) : file_(std::move(file)) {}

  /// A later value of a key replaces an earlier one, as on a command line. The items of a list are
  /// text with blanks between; no number or flag is read from one.
  void add(const std::string& key, const std::string& text, int line, bool is_list = false);

  bool has(const std::string& key) const { return values_.contains(key); }
  // Each takes the key, and fails with file, line and key on a wrong value.
  std::optional<std::string> text(const std::string& key);
  std::optional<std::int64_t> integer(const std::string& key, std::int64_t low = 1,
                                      std::int64_t high = std::int64_t{1} << 40);
  std::optional<double> number(const std::string& key);
  bool flag(const std::string& key, bool otherwise = false);
  std::int64_t required(const std::string& key);

  /// Error{InvalidInput}: "run.sh:12: --num-layers: message".
  [[noreturn]] void fail(const std::string& key, const std::string& message) const;
  /// Keys that nobody took, in order.
  std::vector<std::string> untaken() const;
  const std::string& file() const { return file_; }

 private:
  /// The text of what must be no list.
  std::optional<std::string> scalar(const std::string& key, const std::string& expected);

  struct Value {
    std::string text;
    int line = 0;
    bool is_list = false;
    bool is_taken = false;
  };
  std::string file_;
  std::map<std::string, Value> values_;
};

/// `--key value ...` of a shell script or of plain words: quotes, comments, continued lines and
/// arrays are understood, variables are replaced by what the file sets (NAME=value) or `variables`.
/// Keys without dashes; a flag has the text "true".
ForeignKeys megatron_keys(std::string_view text, const std::string& file,
                          const std::map<std::string, std::string>& variables);
/// "table.key" of TOML; lists as "a b".
ForeignKeys toml_keys(std::string_view text, const std::string& file);
/// "model.optim.lr" of YAML, with references `${model.x}` and `${.x}` followed.
ForeignKeys nemo_keys(const Yaml& root);

}  // namespace foresail::scenarios
