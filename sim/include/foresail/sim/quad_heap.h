/// \file
/// A heap with four children per node: half the levels of a binary one, whose siblings share a
/// cache line or two.
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>
#include <vector>

#include "foresail/base/error.h"

namespace foresail::sim {

/// The first item by `Before`, a strict order of all items that ever meet here.
template <class Item, class Before>
class QuadHeap {
 public:
  bool empty() const { return items_.empty(); }
  std::size_t size() const { return items_.size(); }
  void clear() { items_.clear(); }
  /// Requires an item. Changing what `Before` reads is the caller's error.
  const Item& front() const { return items_.front(); }
  Item& front() { return items_.front(); }
  /// The items of which one is front() after the next pop(), if nothing sooner is pushed.
  std::span<const Item> seconds() const {
    if (items_.size() < 2) return {};
    return std::span(items_).subspan(1, std::min(kChildren, items_.size() - 1));
  }

  void push(const Item& item) {
    std::size_t at = items_.size();
    items_.push_back(item);
    while (at > 0) {
      const std::size_t parent = (at - 1) / kChildren;
      if (!before_(item, items_[parent])) break;
      items_[at] = items_[parent];
      at = parent;
    }
    items_[at] = item;
  }

  /// Requires an item.
  void pop() {
    FORESAIL_EXPECT(!items_.empty());
    const Item last = items_.back();
    items_.pop_back();
    if (items_.empty()) return;
    std::size_t at = 0;
    while (true) {
      const std::size_t first = kChildren * at + 1;
      if (first >= items_.size()) break;
      const std::size_t end = std::min(first + kChildren, items_.size());
      std::size_t least = first;
      for (std::size_t child = first + 1; child < end; ++child) {
        if (before_(items_[child], items_[least])) least = child;
      }
      if (!before_(items_[least], last)) break;
      items_[at] = items_[least];
      at = least;
    }
    items_[at] = last;
  }

 private:
  static constexpr std::size_t kChildren = 4;
  std::vector<Item> items_;
  [[no_unique_address]] Before before_;
};

}  // namespace foresail::sim
