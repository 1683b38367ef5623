#include "import_stages.h"

#include <fmt/format.h>

#include "foresail/base/error.h"

namespace foresail::scenarios {
namespace {

constexpr std::size_t kLettersMax = 1 << 16;
constexpr int kDepthMax = 8;

/// Letters and bars with all repetitions written out.
class Expansion {
 public:
  explicit Expansion(std::string_view text) : text_(text) {}

  std::string finish() {
    std::string letters = sequence(0);
    if (at_ < text_.size()) fail("\")\" closes nothing");
    return letters;
  }

 private:
  [[noreturn]] void fail(const std::string& message) const {
    throw Error(ErrorCode::InvalidInput, fmt::format("column {}: {}", at_ + 1, message));
  }

  std::string sequence(int depth) {
    if (depth > kDepthMax) fail("parentheses are nested too deeply");
    std::string letters;
    while (at_ < text_.size() && text_[at_] != ')') {
      const char each = text_[at_++];
      if (each == ',' || each == ' ') continue;
      append(letters, each == '(' ? group(depth) : letter(each));
    }
    return letters;
  }

  std::string group(int depth) {
    std::string letters = sequence(depth + 1);
    if (at_ == text_.size()) fail("\"(\" is not closed");
    ++at_;
    return letters;
  }

  std::string letter(char each) {
    if (std::string_view("EtmL|").find(each) == std::string_view::npos) {
      --at_;
      fail(fmt::format("\"{}\" is none of E, t, m, L, |, (, )", each));
    }
    return std::string(1, each);
  }

  void append(std::string& letters, const std::string& part) {
    const std::size_t times = repetitions();
    if (letters.size() + part.size() * times > kLettersMax) fail("too many layers");
    for (std::size_t i = 0; i < times; ++i) letters += part;
  }

  std::size_t repetitions() {
    if (at_ == text_.size() || text_[at_] != '*') return 1;
    ++at_;
    std::size_t times = 0;
    const std::size_t first = at_;
    while (at_ < text_.size() && text_[at_] >= '0' && text_[at_] <= '9' && times < kLettersMax) {
      times = 10 * times + static_cast<std::size_t>(text_[at_++] - '0');
    }
    if (at_ == first || times == 0) fail("\"*\" needs a number above 0");
    return times;
  }

  std::string_view text_;
  std::size_t at_ = 0;
};

}  // namespace

std::vector<StageLetters> parse_stage_letters(std::string_view text) {
  std::vector<StageLetters> stages(1);
  for (const char letter : Expansion(text).finish()) {
    if (letter == '|') {
      stages.emplace_back();
    } else {
      stages.back() += letter;
    }
  }
  return stages;
}

}  // namespace foresail::scenarios
