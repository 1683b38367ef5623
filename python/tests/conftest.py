"""The tests run against the installed package, never against the source tree."""

import pathlib

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
