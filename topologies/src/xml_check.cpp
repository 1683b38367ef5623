#include "xml_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "import_text.h"

namespace foresail::topologies {
namespace {

constexpr std::size_t kDepthMax = 64;
constexpr std::string_view kBlanks = " \t\r\n";

class Checker {
 public:
  Checker(std::string_view text, const std::string& file) : text_(text), file_(file) {}

  void check() {
    while (at_ < text_.size()) {
      const std::size_t tag = std::min(text_.find('<', at_), text_.size());
      if (text_.substr(at_, tag - at_).find_first_not_of(kBlanks) != text_.npos) {
        at_ += text_.substr(at_).find_first_not_of(kBlanks);
        fail(open_.empty() ? "text outside of elements" : "text inside of an element");
      }
      at_ = tag;
      if (at_ < text_.size()) markup();
    }
    if (!open_.empty()) fail(fmt::format("<{}> is never closed", open_.back()));
    if (roots_ == 0) fail("holds no element");
  }

 private:
  [[noreturn]] void fail(const std::string& message) const {
    const auto line = 1 + std::ranges::count(text_.substr(0, at_), '\n');
    fail_at(file_, static_cast<int>(line), "not valid XML: " + message);
  }

  bool begins(std::string_view word) const { return text_.substr(at_).starts_with(word); }

  // Past the next `end`.
  void skip_to(std::string_view end) {
    const std::size_t found = text_.find(end, at_);
    if (found == text_.npos) fail(fmt::format("no {} follows", end));
    at_ = found + end.size();
  }

  // The position of the '>' that ends a tag: none within quotes.
  std::size_t end_of_tag() const {
    char quote = 0;
    for (std::size_t i = at_; i < text_.size(); ++i) {
      const char c = text_[i];
      if (quote != 0) {
        if (c == quote) quote = 0;
      } else if (c == '"' || c == '\'') {
        quote = c;
      } else if (c == '>') {
        return i;
      }
    }
    fail("a tag without an end");
  }

  void markup() {
    if (begins("<!--")) return skip_to("-->");
    if (begins("<?")) return skip_to("?>");
    if (begins("<!")) fail("neither a document type nor CDATA belongs here");
    const std::size_t end = end_of_tag();
    std::string_view inner = text_.substr(at_ + 1, end - at_ - 1);
    const bool is_closing = inner.starts_with('/');
    const bool is_empty = inner.ends_with('/');
    if (is_closing) inner.remove_prefix(1);
    const std::string_view name =
        inner.substr(0, std::min(inner.find_first_of(" \t\r\n/"), inner.size()));
    if (name.empty()) fail("a tag without a name");
    if (is_closing) {
      close(name);
    } else {
      if (open_.empty() && roots_++ > 0) fail(fmt::format("a second root, {}", shown(name)));
      if (!is_empty) open_.push_back(name);
      if (open_.size() > kDepthMax) fail("nested too deeply");
    }
    at_ = end + 1;
  }

  void close(std::string_view name) {
    if (open_.empty()) fail(fmt::format("{} closes nothing", shown(name)));
    if (open_.back() != name) {
      fail(fmt::format("{} is closed by {}", shown(open_.back()), shown(name)));
    }
    open_.pop_back();
  }

  std::string_view text_;
  const std::string& file_;
  std::size_t at_ = 0;
  std::vector<std::string_view> open_;
  int roots_ = 0;
};

}  // namespace

void check_xml(std::string_view text, const std::string& file) {
  Checker(text, file).check();
}

}  // namespace foresail::topologies
