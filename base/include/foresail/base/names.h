/// \file
/// One name table per closed choice: it serves to_string, the parsers, Python and the docs.
///
///     enum class Block { Serial, Parallel };
///     template <> inline constexpr auto kNames<Block> = std::to_array<Named<Block>>(
///         {{Block::Serial, "serial"}, {Block::Parallel, "parallel"}});
#pragma once

#include <array>
#include <optional>
#include <string>
#include <string_view>

namespace foresail {

template <class E>
struct Named {
  E value;
  std::string_view name;
};

/// Specialised beside each enum, in namespace foresail.
template <class E>
inline constexpr std::array<Named<E>, 0> kNames{};

template <class E>
constexpr std::string_view to_string(E value) {
  for (const auto& entry : kNames<E>) {
    if (entry.value == value) return entry.name;
  }
  return "?";
}

template <class E>
constexpr std::optional<E> from_string(std::string_view name) {
  for (const auto& entry : kNames<E>) {
    if (entry.name == name) return entry.value;
  }
  return std::nullopt;
}

/// "serial, parallel": for messages that list the choices.
template <class E>
std::string choices() {
  std::string list;
  for (const auto& entry : kNames<E>) {
    if (!list.empty()) list += ", ";
    list += entry.name;
  }
  return list;
}

}  // namespace foresail
