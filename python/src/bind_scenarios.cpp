#include <fmt/format.h>
#include <pybind11/stl.h>

#include <optional>
#include <string>

#include "bind.h"
#include "foresail/base/error.h"
#include "foresail/planner/plan.h"
#include "foresail/program/profile.h"
#include "foresail/report/compare.h"
#include "foresail/scenarios/scenario.h"
#include "foresail/scenarios/simulate.h"

namespace foresail::python {
namespace {

namespace py = pybind11;
using scenarios::Answer;
using scenarios::Scenario;
using OptionalText = std::optional<std::string>;

template <class E>
E choice(const char* name, const OptionalText& text, E otherwise) {
  if (!text) return otherwise;
  if (const auto value = from_string<E>(*text)) return *value;
  throw Error(ErrorCode::InvalidInput,
              fmt::format("{}: \"{}\" is not one of {}", name, *text, choices<E>()));
}

Answer simulate(const Scenario& scenario, const OptionalText& fidelity, const OptionalText& fold,
                const OptionalText& profile) {
  scenarios::SimulateOptions options;
  options.fidelity = choice("fidelity", fidelity, options.fidelity);
  options.fold = choice("fold", fold, options.fold);
  std::optional<program::Profile> measured;
  if (profile) measured = program::load_profile(*profile);
  options.profile = measured ? &*measured : nullptr;
  options.conditions = &scenario.conditions;
  Answer answer = scenarios::simulate(scenario.plan, options);
  if (!answer.failure.empty()) {
    throw Error(ErrorCode::InvalidInput,
                scenario.path.string() + ": the job fails: " + answer.failure);
  }
  if (!answer.result) {
    throw Error(ErrorCode::InvalidInput,
                scenario.path.string() + ": infeasible\n" + scenarios::reasons(answer.feasibility));
  }
  return answer;
}

std::string compare(const std::string& predicted, const std::string& measured) {
  const auto read = [](const std::string& text, const std::string& name) {
    return program::trace_from_document(parse_json(text, name), name);
  };
  const program::Trace first = read(predicted, "predicted");
  const program::Trace second = read(measured, "measured");
  const program::Program program = program::parse_program(first.program, "predicted");
  return report::to_document(report::compare(program, first, second)).dump();
}

}  // namespace

void bind_scenarios(py::module_& module) {
  const py::call_guard<py::gil_scoped_release> without_gil;

  py::class_<Scenario>(module, "Scenario", "A question: what load() read from a file.")
      .def_property_readonly("path", [](const Scenario& self) { return self.path.string(); })
      .def_property_readonly("plan_digest", [](const Scenario& self) { return self.plan.digest(); })
      .def(
          "save_plan",
          [](const Scenario& self, const std::string& path) {
            planner::save_plan(self.plan, path);
          },
          py::arg("path"), "Writes the Plan that the scenario describes.")
      .def("__repr__", [](const Scenario& self) {
        return fmt::format("<foresail.Scenario {}>", self.path.string());
      });

  py::class_<Answer>(module, "Answer", "The answer of simulate(), as texts.")
      .def("to_json", [](const Answer& self) { return report::to_document(*self.result).dump(); })
      .def("to_text", [](const Answer& self) { return report::to_text(*self.result); })
      .def("reasons", [](const Answer& self) { return scenarios::reasons(self.feasibility); })
      .def("trace_to_json",
           [](const Answer& self) { return program::to_document(self.trace).dump(); });

  module.def(
      "load", [](const std::string& path) { return scenarios::load_scenario(path); },
      py::arg("path"), without_gil);
  module.def("simulate", &simulate, py::arg("scenario"), py::arg("fidelity"), py::arg("fold"),
             py::arg("profile"), without_gil);
  module.def("compare", &compare, py::arg("predicted"), py::arg("measured"), without_gil);
}

}  // namespace foresail::python
