#include "bind.h"
#include "foresail/scenarios/simulate.h"

PYBIND11_MODULE(_core, module) {
  module.doc() = "The compiled half of the package foresail; see foresail/__init__.py.";
  module.attr("__version__") = foresail::scenarios::version();
  foresail::python::bind_base(module);
  foresail::python::bind_scenarios(module);
}
