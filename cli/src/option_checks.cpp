#include "option_checks.h"

#include <fmt/format.h>

#include <charconv>
#include <vector>

namespace foresail::cli {

CLI::Validator whole_number(std::int64_t low, std::int64_t high) {
  const auto check = [low, high](const std::string& text) {
    std::int64_t value = 0;
    const char* end = text.data() + text.size();
    const auto [last, code] = std::from_chars(text.data(), end, value);
    const bool is_number = code == std::errc() && last == end && value >= low && value <= high;
    return is_number ? std::string()
                     : fmt::format("\"{}\" is no whole number from {} to {}", text, low, high);
  };
  return {check, fmt::format("{} to {}", low, high)};
}

CLI::Validator seconds_above_zero() {
  const auto check = [](const std::string& text) {
    double value = 0;
    const char* end = text.data() + text.size();
    const auto [last, code] = std::from_chars(text.data(), end, value);
    const bool is_number = code == std::errc() && last == end && value > 0 && value <= 1e9;
    return is_number ? std::string()
                     : fmt::format("\"{}\" is no number of seconds above 0 (without a unit)", text);
  };
  return {check, "above 0"};
}

void refuse_empty_values(CLI::App& app) {
  const auto check = [](const std::string& text) {
    return text.empty() ? std::string("is empty") : std::string();
  };
  for (CLI::Option* option : app.get_options()) {
    if (option->get_items_expected_max() > 0) option->check(CLI::Validator(check, ""));
  }
  for (CLI::App* command : app.get_subcommands({})) refuse_empty_values(*command);
}

void refuse_in_one_line(CLI::App& app) {
  const std::string name = app.get_name();
  app.failure_message([name](const CLI::App* root, const CLI::Error& problem) {
    const std::vector<std::string> rest = root->remaining();
    if (root->get_subcommands().empty() && !rest.empty() && !rest.front().starts_with('-')) {
      return fmt::format("{}: \"{}\" is no command (--help lists them)\n", name, rest.front());
    }
    return fmt::format("{}: {} (--help lists the options)\n", name, problem.what());
  });
}

}  // namespace foresail::cli
