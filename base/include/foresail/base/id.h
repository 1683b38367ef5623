/// \file
/// Typed indices. LinkId and RankId are both integers, yet never interchange.
#pragma once

#include <compare>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

namespace foresail {

template <class Tag>
struct Id {
  std::uint32_t value = 0;
  friend constexpr auto operator<=>(Id, Id) = default;
};

/// A vector that is indexed only by its own kind of Id.
template <class IdType, class T>
class IdVector {
 public:
  IdType push_back(T item) {
    items_.push_back(std::move(item));
    return IdType{static_cast<std::uint32_t>(items_.size() - 1)};
  }
  T& operator[](IdType id) { return items_[id.value]; }
  const T& operator[](IdType id) const { return items_[id.value]; }
  std::size_t size() const { return items_.size(); }
  bool empty() const { return items_.empty(); }
  void reserve(std::size_t count) { items_.reserve(count); }
  void resize(std::size_t count, const T& item = T{}) { items_.resize(count, item); }
  auto begin() const { return items_.begin(); }
  auto end() const { return items_.end(); }

 private:
  std::vector<T> items_;
};

using RankId = Id<struct RankTag>;      ///< a process of the job
using DeviceId = Id<struct DeviceTag>;  ///< a GPU (or a CPU's share) of the cluster
using VertexId = Id<struct VertexTag>;  ///< a vertex of the cluster graph
using LinkId = Id<struct LinkTag>;      ///< one direction of a cable

}  // namespace foresail
