"""Loads a scenario, predicts one step, and shows where the time goes."""

import pathlib
import sys

import foresail

path = sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).with_name("scenario.yaml")
result = foresail.simulate(path)
print(f"plan    {result.summary['plan_digest']}")
print(f"memory  {result.memory.loc['peak', 'bytes'] * 1e-9:.1f} GB")
print(f"step    {result.summary['iteration_time_s']:.3f} s")
