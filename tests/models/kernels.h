/// \file
/// Reading kernel lists, for tests.
#pragma once

#include <stdexcept>
#include <string>
#include <vector>

#include "foresail/models/operators.h"

namespace foresail::models {

inline std::vector<std::string> names(const std::vector<Kernel>& list) {
  std::vector<std::string> found;
  for (const Kernel& kernel : list) found.push_back(kernel.name);
  return found;
}

inline std::vector<std::string> names_of_kind(const std::vector<Kernel>& list, KernelKind kind) {
  std::vector<std::string> found;
  for (const Kernel& kernel : list) {
    if (kernel.kind == kind) found.push_back(kernel.name);
  }
  return found;
}

inline int index_of(const std::vector<Kernel>& list, const std::string& name) {
  for (std::size_t i = 0; i < list.size(); ++i) {
    if (list[i].name == name) return static_cast<int>(i);
  }
  throw std::out_of_range("no kernel " + name);
}

inline const Kernel& kernel(const std::vector<Kernel>& list, const std::string& name) {
  return list[static_cast<std::size_t>(index_of(list, name))];
}

/// Names of what `name` lists in `after`.
inline std::vector<std::string> awaited(const std::vector<Kernel>& list, const std::string& name) {
  std::vector<std::string> found;
  for (const int before : kernel(list, name).after) {
    found.push_back(list[static_cast<std::size_t>(before)].name);
  }
  return found;
}

/// "m n k", with "batch x" in front of batched products.
inline std::string shape(const Kernel& kernel) {
  std::string text = kernel.batch == 1 ? "" : std::to_string(kernel.batch) + " x ";
  return text + std::to_string(kernel.m) + " " + std::to_string(kernel.n) + " " +
         std::to_string(kernel.k);
}

inline std::string shape(const std::vector<Kernel>& list, const std::string& name) {
  return shape(kernel(list, name));
}

/// Kernels of a collective kind.
inline int count_of(const std::vector<Kernel>& list, Collective kind) {
  int count = 0;
  for (const Kernel& entry : list) {
    count += entry.kind == KernelKind::Collective && entry.collective == kind ? 1 : 0;
  }
  return count;
}

inline std::int64_t bytes_of(const std::vector<Kernel>& list, Collective kind) {
  std::int64_t total = 0;
  for (const Kernel& entry : list) {
    if (entry.kind == KernelKind::Collective && entry.collective == kind) {
      total += entry.bytes.count();
    }
  }
  return total;
}

inline double flops_of(const std::vector<Kernel>& list) {
  double total = 0;
  for (const Kernel& entry : list) total += entry.flops.count();
  return total;
}

}  // namespace foresail::models
