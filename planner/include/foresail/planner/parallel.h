/// \file
/// The same work for many indices on several threads.
#pragma once

#include <cstddef>
#include <functional>

namespace foresail::planner {

/// Calls work(i) once for every i below `count`, in any order; the caller's thread takes part.
/// `after` is called by the caller's thread alone, after each of its own; may be empty. Rethrows
/// the exception of the lowest index that threw.
void for_each_index(int threads, std::size_t count, const std::function<void(std::size_t)>& work,
                    const std::function<void()>& after = {});

}  // namespace foresail::planner
