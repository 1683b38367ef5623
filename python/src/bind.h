/// \file
/// What each bind_<module>.cpp adds to the extension foresail._core.
#pragma once

#include <pybind11/pybind11.h>

namespace foresail::python {

/// ForesailError (ValueError) and ContractViolation (AssertionError).
void bind_base(pybind11::module_& module);
/// Scenario, Answer, load, simulate, compare.
void bind_scenarios(pybind11::module_& module);

}  // namespace foresail::python
