/// \file
/// One line of a line-oriented text, word by word, with file and line in every complaint.
#pragma once

#include <charconv>
#include <cstdint>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "foresail/base/names.h"

namespace foresail::program {

/// Words are separated by blanks; a word in double quotes may hold anything, with \" \\ and \xNN.
class LineReader {
 public:
  struct Place {
    std::string_view file;  ///< must outlive the reader
    int line = 0;
  };

  LineReader(std::string_view text, Place place);

  bool is_done() const { return next_ == words_.size(); }
  /// The next word without taking it; empty at the end of the line.
  std::string_view peek() const;
  /// Takes the next word; `what` names it if it is missing.
  std::string take(std::string_view what);
  /// Takes a word that must be `word`.
  void expect(std::string_view word);
  /// Takes an integer in [low, high].
  std::int64_t integer(std::string_view what, std::int64_t low, std::int64_t high);
  /// Takes a finite number that is not negative.
  double number(std::string_view what);
  /// Takes "0,3,4": integers in [0, limit), without blanks.
  std::vector<std::uint32_t> list(std::string_view what, std::int64_t limit);
  /// Refuses what is left over.
  void finish() const;

  template <class E>
  E choice(std::string_view what) {
    const std::string text = take(what);
    if (const auto value = from_string<E>(text)) return *value;
    fail("\"" + text + "\" is not one of " + choices<E>());
  }

  /// Throws Error{InvalidInput}: "<file>:<line>: <message>".
  [[noreturn]] void fail(const std::string& message) const;

 private:
  std::int64_t to_integer(std::string_view text, std::string_view what, std::int64_t low,
                          std::int64_t high) const;

  Place place_;
  std::vector<std::string> words_;
  std::size_t next_ = 0;
};

}  // namespace foresail::program
