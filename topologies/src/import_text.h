/// \file
/// What the readers of other tools' files share: lines with numbers, words, limits, order of names.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "foresail/topologies/import.h"

namespace foresail::topologies {

inline constexpr int kImportNodesMax = 1 << 17;
/// What is written can be read again: base/yaml.h takes two million nodes, a cable up to eleven.
inline constexpr std::int64_t kImportCablesMax = 120'000;

/// Throws Error{InvalidInput}: "<file>:<line>: <message>".
[[noreturn]] void fail_at(const std::string& file, int line, const std::string& message);

/// `text` for a message: at most 60 characters, odd ones as '?', in quotes.
std::string shown(std::string_view text);

struct TextLine {
  int number = 0;
  std::string_view text;  ///< without line end and blanks at both ends
};
/// All lines; the views point into `text`.
std::vector<TextLine> lines_of(std::string_view text);

std::vector<std::string_view> words_of(std::string_view text);

/// A whole decimal number in [0, 2^31).
std::optional<int> number_of(std::string_view text);

/// "400Gbps" and "0.0005ms" as ns-3 writes them. Throw Error{InvalidInput} at `line`.
Bandwidth ns3_bandwidth(const std::string& file, const TextLine& line, std::string_view text);
Duration ns3_latency(const std::string& file, const TextLine& line, std::string_view text);

/// "node2" before "node10": runs of digits compare as numbers.
bool natural_less(std::string_view a, std::string_view b);

/// Fills in the tiers: 1 for a switch with a NIC, else one more than the lowest neighbour. Removes
/// switches that no NIC can reach, with a remark.
void find_tiers(ImportedTopology& imported);

/// Fills in `nics` and `nic_bandwidth` from the cables of the graph; a remark if NICs differ.
void find_nics(ImportedTopology& imported);

/// The physical topology text of astra-sim's ns-3 backend; read_astra_sim calls it.
ImportedTopology read_ns3_topology(std::string_view text, const std::string& file);

}  // namespace foresail::topologies
