"""The tests run against the installed package, never against the source tree."""

import pathlib

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]


@pytest.fixture
def scenarios():
    return ROOT / "scenarios"
