#include "bind.h"
#include "foresail/base/error.h"

namespace foresail::python {

namespace py = pybind11;

void bind_base(py::module_& module) {
  py::register_exception<Error>(module, "ForesailError", PyExc_ValueError);
  py::register_exception<ContractViolation>(module, "ContractViolation", PyExc_AssertionError);
}

}  // namespace foresail::python
