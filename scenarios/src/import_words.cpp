// Command lines: the words of a shell script, as far as they matter for options.
#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <optional>

#include "foresail/base/error.h"
#include "import_keys.h"

namespace foresail::scenarios {
namespace {

struct Word {
  std::string text;
  int line = 0;
  int command = 0;       // words of one command, or of one line in an array
  bool is_open = false;  // holds a variable that nobody sets
};

bool is_name(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_';
}

// Splits a script into words, replacing variables on the way: assignments stand before their use.
class Words {
 public:
  Words(std::string_view text, std::map<std::string, std::string> variables)
      : text_(text), given_(std::move(variables)), variables_(given_) {}

  std::vector<Word> take() {
    while (at_ < text_.size()) step();
    end_word();
    return std::move(words_);
  }

 private:
  char next() const { return at_ + 1 < text_.size() ? text_[at_ + 1] : '\0'; }

  void step() {
    const char c = text_[at_];
    if (c == '\n') {
      ++line_;
      if (quote_ == 0) {
        end_word();
        ++command_;
      } else {
        word_.text += c;
      }
      ++at_;
    } else if (c == '\\' && quote_ != '\'') {
      if (next() == '\n') ++line_;
      if (next() != '\n' && next() != '\0') word_.text += next();
      at_ += 2;
    } else if (c == '$' && quote_ != '\'') {
      variable();
    } else if (quote_ != 0) {
      if (c == quote_) {
        quote_ = 0;
      } else {
        word_.text += c;
      }
      ++at_;
    } else {
      unquoted(c);
      ++at_;
    }
  }

  void unquoted(char c) {
    if (c == '"' || c == '\'') {
      quote_ = c;
      is_word_ = true;
    } else if (c == '#' && word_.text.empty()) {
      while (at_ + 1 < text_.size() && text_[at_ + 1] != '\n') ++at_;
    } else if (std::isspace(static_cast<unsigned char>(c)) != 0 || c == ';' || c == '(' ||
               c == ')' || c == '&' || c == '|') {
      // `ARGS=(` leaves the array's own words, which stand where they are wanted.
      if (c == '(' && word_.text.ends_with('=')) word_.text.clear();
      end_word();
      if (c == ')' || c == ';' || c == '&' || c == '|') ++command_;
    } else {
      word_.text += c;
    }
  }

  // $NAME, ${NAME}, ${NAME:-default}; what is none of these stays open.
  void variable() {
    std::string name;
    std::optional<std::string> otherwise;
    if (next() == '{') {
      std::size_t end = text_.find('}', at_);
      if (end == std::string_view::npos) end = text_.size();
      name = std::string(text_.substr(at_ + 2, end < at_ + 2 ? 0 : end - at_ - 2));
      if (const std::size_t dash = name.find(":-"); dash != std::string::npos) {
        otherwise = name.substr(dash + 2);
        name.resize(dash);
      }
      at_ = std::min(end + 1, text_.size());
    } else if (next() == '(') {
      arithmetic();
      return;
    } else {
      ++at_;
      while (at_ < text_.size() && is_name(text_[at_])) name += text_[at_++];
      if (name.empty() && at_ < text_.size()) ++at_;  // $@, $*
    }
    if (const auto found = variables_.find(name); found != variables_.end()) {
      word_.text += found->second;
    } else if (otherwise) {
      word_.text += *otherwise;
    } else if (!name.ends_with("[@]") && !name.ends_with("[*]")) {
      word_.text += "$" + name;
      word_.is_open = true;
    }
  }

  // $(( ... )) and $( ... ) are not computed.
  void arithmetic() {
    int open = 0;
    do {
      if (text_[at_] == '(') ++open;
      if (text_[at_] == ')') --open;
      if (text_[at_] == '\n') ++line_;
      ++at_;
    } while (at_ < text_.size() && (open > 0 || text_[at_ - 1] == '$'));
    word_.text += "$(...)";
    word_.is_open = true;
  }

  void end_word() {
    if (!word_.text.empty() || is_word_) {
      const std::size_t equal = word_.text.find('=');
      const bool is_assignment =
          equal != std::string::npos && equal > 0 &&
          std::all_of(word_.text.begin(), word_.text.begin() + static_cast<std::ptrdiff_t>(equal),
                      is_name);
      if (is_assignment) {
        assign(word_.text.substr(0, equal), word_.text.substr(equal + 1));
      } else {
        word_.line = line_;
        word_.command = command_;
        words_.push_back(word_);
      }
    }
    word_ = {};
    is_word_ = false;
  }

  // A quoted list of options (ARGS="--a 1 --b 2") is words, too, wherever it is used.
  void assign(const std::string& name, const std::string& value) {
    if (value.find("--") != std::string::npos) {
      Words inner(value, variables_);
      for (Word& word : inner.take()) {
        word.line = line_;
        word.command = command_;
        words_.push_back(std::move(word));
      }
      variables_[name] = "";
      return;
    }
    if (!word_.is_open && !given_.contains(name)) variables_[name] = value;
  }

  std::string_view text_;
  std::map<std::string, std::string> given_, variables_;
  std::vector<Word> words_;
  Word word_;
  bool is_word_ = false;
  char quote_ = 0;
  std::size_t at_ = 0;
  int line_ = 1;
  int command_ = 0;
};

/// What a launcher starts: its own options follow.
bool is_program(const std::string& text) {
  return text.ends_with(".py");
}

bool is_option(const std::string& text) {
  return text.size() > 2 && text.starts_with("--");
}

}  // namespace

ForeignKeys megatron_keys(std::string_view text, const std::string& file,
                          const std::map<std::string, std::string>& variables) {
  ForeignKeys keys(file);
  const std::vector<Word> words = Words(text, variables).take();
  for (std::size_t i = 0; i < words.size(); ++i) {
    if (!is_option(words[i].text)) continue;
    std::string key = words[i].text.substr(2);
    std::string value;
    const std::size_t equal = key.find('=');
    if (equal != std::string::npos) {
      value = key.substr(equal + 1);
      key.resize(equal);
    }
    const Word& option = words[i];
    while (equal == std::string::npos && i + 1 < words.size() && !is_option(words[i + 1].text) &&
           !is_program(words[i + 1].text) && words[i + 1].command == option.command) {
      const std::string& word = words[++i].text;
      value += (value.empty() || word.empty() ? "" : " ") + word;
    }
    keys.add(key, value.empty() ? "true" : value, option.line);
  }
  return keys;
}

}  // namespace foresail::scenarios
