"""foresail/_core.pyi says what foresail._core has, no more and no less."""

import ast
import inspect
import pathlib

import foresail
from foresail import _core


def stub_names():
    text = pathlib.Path(foresail.__file__).with_name("_core.pyi").read_text(encoding="utf-8")
    names = set()
    for node in ast.parse(text).body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            names.add(node.name)
        elif isinstance(node, ast.AnnAssign):
            names.add(node.target.id)
        if isinstance(node, ast.ClassDef):
            names |= {f"{node.name}.{member.name}" for member in node.body
                      if isinstance(member, ast.FunctionDef)}
            names |= {f"{node.name}.{member.target.id}" for member in node.body
                      if isinstance(member, ast.AnnAssign)}
    return names


def real_names():
    names = set()
    for name, value in vars(_core).items():
        if name.startswith("__") and name != "__version__":
            continue
        names.add(name)
        if inspect.isclass(value) and not issubclass(value, Exception):
            names |= {f"{name}.{member}" for member in vars(value)
                      if not member.startswith("_") or member == "__repr__"}
    return names


def test_the_stub_names_what_the_module_has():
    ignored = {name for name in stub_names() if name.endswith(".code")}
    assert stub_names() - ignored == real_names()


def test_the_package_is_typed():
    assert pathlib.Path(foresail.__file__).with_name("py.typed").exists()
