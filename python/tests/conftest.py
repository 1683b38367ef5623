"""The tests run against the installed package, never against the source tree."""

import json
import os
import pathlib
import shutil
import subprocess

import pytest

import foresail

ROOT = pathlib.Path(__file__).resolve().parents[2]


@pytest.fixture
def root():
    return ROOT


@pytest.fixture
def scenario_path():
    return ROOT / "examples/01_first_plan/scenario.yaml"


@pytest.fixture(scope="session")
def result():
    return foresail.simulate(ROOT / "examples/01_first_plan/scenario.yaml")


class Commands:
    """The command of a build: that of FORESAIL_BIN, of the preset `dev`, or in PATH."""

    root = ROOT

    def __init__(self):
        folders = [os.environ.get("FORESAIL_BIN", ""), str(ROOT / "build/dev/bin"),
                   os.environ.get("PATH", "")]
        self.path = os.pathsep.join(filter(None, folders))
        for name in ("foresail", "foresail-worker"):
            if shutil.which(name, path=self.path) is None:
                pytest.skip(f"{name} is neither in FORESAIL_BIN, build/dev/bin nor PATH")

    def run(self, *arguments):
        environment = {**os.environ, "FORESAIL_DATA": ""}
        command = [shutil.which("foresail", path=self.path), *map(str, arguments)]
        done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120,
                              check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def train(self, scenario, folder, *, ranks, more=()):
        """Plans `scenario` and trains it; returns run.json. Files come to be in `folder`."""
        self.run("plan", scenario, "-o", folder / "plan.yaml")
        self.run("run", folder / "plan.yaml", "--launch", ranks, "-o", folder / "run", *more)
        return json.loads((folder / "run/run.json").read_text(encoding="utf-8"))


@pytest.fixture
def commands():
    return Commands()
