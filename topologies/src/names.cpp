#include "names.h"

#include <fmt/format.h>

#include <charconv>

#include "foresail/base/error.h"

namespace foresail::topologies {
namespace {

const char* tier_name(int tier) {
  return tier == 1 ? "leaf" : tier == 2 ? "spine" : "core";
}

/// The number that `text` is from its first character to its last.
std::optional<std::uint32_t> number(std::string_view text) {
  std::uint32_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

std::optional<VertexId> find_between(const IdVector<VertexId, Vertex>& vertices,
                                     std::uint32_t first, std::uint32_t last,
                                     std::string_view name) {
  for (std::uint32_t v = first; v < last; ++v) {
    if (vertices[VertexId{v}].name() == name) return VertexId{v};
  }
  return std::nullopt;
}

}  // namespace

std::string Vertex::name() const {
  switch (kind) {
    case VertexKind::Device:
      return fmt::format("node{}.gpu{}", node, index);
    case VertexKind::NvSwitch:
      return fmt::format("node{}.nvswitch", node);
    case VertexKind::Host:
      return fmt::format("node{}.host", node);
    case VertexKind::Pcie:
      return fmt::format("node{}.pcie{}", node, index);
    case VertexKind::Nic:
      return fmt::format("node{}.nic{}", node, index);
    case VertexKind::Switch:
      return label.empty() ? fmt::format("{}{}", tier_name(tier), index) : label;
  }
  return "?";
}

std::optional<VertexId> find_vertex(const IdVector<VertexId, Vertex>& vertices,
                                    const NodeRange& range, std::string_view name) {
  const std::uint32_t first_switch = range.nodes * range.per_node;
  const std::size_t dot = name.find('.');
  if (name.starts_with("node") && dot != std::string_view::npos) {
    const std::optional<std::uint32_t> node = number(name.substr(4, dot - 4));
    if (node && *node < range.nodes) {
      const std::uint32_t first = *node * range.per_node;
      if (const auto found = find_between(vertices, first, first + range.per_node, name)) {
        return found;
      }
    }
  }
  return find_between(vertices, first_switch, static_cast<std::uint32_t>(vertices.size()), name);
}

std::optional<LinkName> parse_link_name(const IdVector<VertexId, Vertex>& vertices,
                                        const NodeRange& range, std::string_view name) {
  const std::size_t arrow = name.find("->");
  if (arrow == std::string_view::npos) return std::nullopt;
  const auto from = find_vertex(vertices, range, name.substr(0, arrow));
  if (!from) return std::nullopt;
  const std::string_view rest = name.substr(arrow + 2);
  if (const auto to = find_vertex(vertices, range, rest)) return LinkName{*from, *to, 0};
  const std::size_t hash = rest.rfind('#');
  if (hash == std::string_view::npos) return std::nullopt;
  const auto to = find_vertex(vertices, range, rest.substr(0, hash));
  const auto parallel = number(rest.substr(hash + 1));
  if (!to || !parallel || *parallel > (1U << 24U)) return std::nullopt;
  return LinkName{*from, *to, static_cast<int>(*parallel)};
}

}  // namespace foresail::topologies
