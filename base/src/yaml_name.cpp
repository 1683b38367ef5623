#include "foresail/base/yaml_name.h"

#include <fmt/format.h>

#include <algorithm>

namespace foresail {
namespace {

constexpr std::size_t kLengthMax = 256;

}  // namespace

std::string read_name(const Yaml& node) {
  std::string name = node.as_string();
  if (name.empty()) node.fail("is empty");
  if (name.size() > kLengthMax) node.fail(fmt::format("has more than {} bytes", kLengthMax));
  const auto is_control = [](unsigned char c) { return c < 0x20 || c == 0x7f; };
  if (std::ranges::any_of(name, is_control)) node.fail("a name with a line break or tab");
  return name;
}

}  // namespace foresail
