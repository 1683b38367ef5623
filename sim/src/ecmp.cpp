#include "foresail/sim/ecmp.h"

#include <array>
#include <bit>

namespace foresail::sim {
namespace {

/// Addresses, ports, protocol, seed; and the queue pair where it is hashed.
struct Packed {
  std::array<std::uint8_t, 21> bytes{};
  std::size_t size = 0;
  const std::uint8_t* begin() const { return bytes.data(); }
  const std::uint8_t* end() const { return bytes.data() + size; }
};

Packed pack(const FiveTuple& tuple, std::uint32_t seed) {
  Packed packed;
  const auto put = [&](std::uint32_t value, int count) {
    for (int i = count - 1; i >= 0; --i) {
      packed.bytes[packed.size++] =
          static_cast<std::uint8_t>(value >> (8u * static_cast<unsigned>(i)));
    }
  };
  put(tuple.source, 4);
  put(tuple.destination, 4);
  put(tuple.source_port, 2);
  put(tuple.destination_port, 2);
  put(17, 1);  // UDP
  put(seed, 4);
  if (tuple.queue_pair != 0) put(tuple.queue_pair, 4);
  return packed;
}

constexpr std::array<std::uint32_t, 256> crc_table() {
  std::array<std::uint32_t, 256> table{};
  for (std::uint32_t i = 0; i < 256; ++i) {
    std::uint32_t value = i;
    for (int bit = 0; bit < 8; ++bit) value = (value >> 1u) ^ ((value & 1u) ? 0xedb88320u : 0u);
    table[i] = value;
  }
  return table;
}

std::uint32_t crc32(const Packed& bytes) {
  static constexpr std::array<std::uint32_t, 256> kTable = crc_table();
  std::uint32_t crc = 0xffffffffu;
  for (const std::uint8_t byte : bytes) crc = kTable[(crc ^ byte) & 0xffu] ^ (crc >> 8u);
  return ~crc;
}

// The 40-byte key that Microsoft's RSS specification prints as its example.
constexpr std::array<std::uint8_t, 40> kToeplitzKey = {
    0x6d, 0x5a, 0x56, 0xda, 0x25, 0x5b, 0x0e, 0xc2, 0x41, 0x67, 0x25, 0x3d, 0x43, 0xa3,
    0x8f, 0xb0, 0xd0, 0xca, 0x2b, 0xcb, 0xae, 0x7b, 0x30, 0xb4, 0x77, 0xcb, 0x2d, 0xa3,
    0x80, 0x30, 0xf2, 0x0c, 0x6a, 0x42, 0xb7, 0x3b, 0xbe, 0xac, 0x01, 0xfa};

std::uint32_t toeplitz(const Packed& bytes) {
  std::uint32_t result = 0;
  std::uint64_t window = 0;
  for (std::size_t i = 0; i < 8; ++i) window = (window << 8u) | kToeplitzKey[i];
  std::size_t next = 8;
  for (const std::uint8_t byte : bytes) {
    for (unsigned bit = 0; bit < 8; ++bit) {
      if ((byte >> (7 - bit)) & 1u) result ^= static_cast<std::uint32_t>((window << bit) >> 32u);
    }
    window = (window << 8u) | kToeplitzKey[next++];
  }
  return result;
}

std::uint32_t xor_fold(const FiveTuple& tuple, std::uint32_t seed) {
  const std::uint32_t ports =
      (std::uint32_t{tuple.source_port} << 16u) | std::uint32_t{tuple.destination_port};
  std::uint32_t value = tuple.source ^ tuple.destination ^ ports ^ seed ^ tuple.queue_pair;
  value ^= value >> 16u;
  value ^= value >> 8u;
  return value;
}

}  // namespace

std::uint16_t roce_source_port(std::uint32_t local_qpn, std::uint32_t remote_qpn) {
  std::uint64_t v = std::uint64_t{local_qpn} * remote_qpn;
  v ^= v >> 20u;
  v ^= v >> 40u;
  const auto label = static_cast<std::uint32_t>(v & 0xfffffu);
  const std::uint32_t low = label & 0x3fffu;
  const std::uint32_t high = (label & 0xfc000u) >> 14u;
  return static_cast<std::uint16_t>((low ^ high) | 0xc000u);
}

std::uint32_t hash_tuple(topologies::Hash kind, const FiveTuple& tuple, std::uint32_t seed) {
  switch (kind) {
    case topologies::Hash::Crc:
      return std::rotr(crc32(pack(tuple, seed)), static_cast<int>(seed & 31u));
    case topologies::Hash::Toeplitz:
      return std::rotr(toeplitz(pack(tuple, 0)) ^ seed, static_cast<int>(seed & 31u));
    case topologies::Hash::Xor:
      return xor_fold(tuple, seed);
  }
  return 0;
}

}  // namespace foresail::sim
