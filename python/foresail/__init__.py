"""Predicts large-model training on GPU clusters; results are pandas frames.

    import foresail
    result = foresail.simulate(foresail.load("scenario.yaml"))
    result.summary["iteration_time_s"]

Names are those of the C++ library and of the command. Wrong input raises ForesailError (a
ValueError) with the message that the command would print; ContractViolation (an AssertionError)
means a bug in Foresail.
"""

import json
import os
import pathlib

# The catalogues that were installed with the package, unless others are asked for.
os.environ.setdefault("FORESAIL_DATA", str(pathlib.Path(__file__).parent / "data"))

from ._core import ContractViolation, ForesailError, Scenario, __version__
from ._results import Comparison, Result
from . import _core

__all__ = ["Comparison", "ContractViolation", "ForesailError", "Result", "Scenario",
           "__version__", "compare", "load", "simulate"]


def load(path):
    """The Scenario in a file; a Plan counts as the scenario that asks for its step."""
    return _core.load(os.fspath(path))


def simulate(scenario, *, fidelity=None, fold=None, profile=None):
    """Predicts one step. `scenario`: from load(), or a path.

    fidelity: "analytic" or "flow"; fold: "auto" or "off"; profile: path of a measured profile. What
    is not given is as the command has it.
    """
    if not isinstance(scenario, Scenario):
        scenario = load(scenario)
    answer = _core.simulate(scenario, fidelity=fidelity, fold=fold,
                            profile=None if profile is None else os.fspath(profile))
    return Result(json.loads(answer.to_json()), json.loads(answer.trace_to_json()),
                  answer.to_text(), answer.reasons())


def compare(predicted, measured):
    """Two traces, by path or as Results, side by side; refused if their digests differ."""
    texts = [json.dumps(trace.trace_document) if isinstance(trace, Result)
             else pathlib.Path(trace).read_text(encoding="utf-8")
             for trace in (predicted, measured)]
    return Comparison(json.loads(_core.compare(*texts)))
