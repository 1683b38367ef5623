"""Results as frames hold what the document holds; the same input gives the same answer."""

import concurrent.futures
import subprocess
import sys

import pytest

import foresail


def answer(result):
    """The document without what the simulation itself took."""
    return {key: value for key, value in result.document.items() if key != "simulator"}


def test_summary_holds_the_single_values(result):
    assert result.summary["iteration_time_s"] > 0
    assert 0 < result.summary["mfu"] < 1
    assert len(result.summary["plan_digest"]) == 64
    assert "breakdown_s" not in result.summary


def test_breakdown_sums_to_the_step(result):
    step = result.summary["iteration_time_s"]
    assert result.breakdown["seconds"].sum() == pytest.approx(step, rel=1e-9)
    assert result.breakdown["share"].sum() == pytest.approx(1)


def test_memory_peak_is_the_sum_of_its_parts(result):
    parts = result.memory["bytes"].drop(["peak", "upper_bound"])
    assert parts.sum() == result.memory.loc["peak", "bytes"] > 0
    assert result.memory.loc["upper_bound", "bytes"] >= parts.sum()


def test_trace_spans_lie_within_the_step(result):
    trace = result.trace
    assert {"step", "rank", "lane", "op", "kernel", "start_s", "end_s", "bytes"} == set(trace)
    assert (trace["start_s"] <= trace["end_s"]).all()
    assert trace["end_s"].max() <= result.summary["iteration_time_s"] * (1 + 1e-9)
    assert {"compute", "tp", "dp"} <= set(trace["lane"])


def test_links_are_named_and_loaded(result):
    assert len(result.links) > 0
    assert result.links["link"].is_unique
    assert (result.links["utilisation"] > 0).all()


def test_the_same_question_has_the_same_answer_in_any_thread(result, scenario_path):
    with concurrent.futures.ThreadPoolExecutor(2) as threads:
        others = list(threads.map(foresail.simulate, [scenario_path, scenario_path]))
    assert answer(others[0]) == answer(others[1]) == answer(result)


def test_a_plan_file_asks_the_same_question(result, scenario_path, tmp_path):
    plan = tmp_path / "plan.yaml"
    foresail.load(scenario_path).save_plan(str(plan))
    assert answer(foresail.simulate(plan)) == answer(result)
    assert foresail.load(plan).plan_digest == result.summary["plan_digest"]


def test_fidelity_is_what_was_asked_for(scenario_path):
    assert foresail.simulate(scenario_path, fidelity="analytic").summary["fidelity"] == "analytic"
    with pytest.raises(foresail.ForesailError, match="guess.* is not one of analytic, flow"):
        foresail.simulate(scenario_path, fidelity="guess")


def test_a_trace_compared_with_itself_has_no_error(result):
    rows = foresail.compare(result, result).rows
    assert rows.loc["step", "predicted_s"] == pytest.approx(result.summary["iteration_time_s"])
    assert (rows["error"].dropna() == 0).all()


def test_wrong_input_is_refused_with_file_line_and_key(scenario_path, tmp_path):
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text(scenario_path.read_text().replace("zero_stage", "zero_stag"))
    with pytest.raises(foresail.ForesailError, match=r"wrong\.yaml:\d+: .*zero_stag") as error:
        foresail.load(wrong)
    assert isinstance(error.value, ValueError)
    with pytest.raises(foresail.ForesailError, match="missing.yaml"):
        foresail.load(tmp_path / "missing.yaml")


def test_an_impossible_layout_is_refused_with_the_law(scenario_path, tmp_path):
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text(scenario_path.read_text().replace("dp: 8", "dp: 7"))
    with pytest.raises(foresail.ForesailError, match="dp 7"):
        foresail.simulate(wrong)


def test_the_example_prints_what_simulate_answers(result, root):
    example = root / "examples/01_first_plan/main.py"
    run = subprocess.run([sys.executable, example], capture_output=True, text=True, check=True)
    assert run.stdout.splitlines() == [
        f"plan    {result.summary['plan_digest']}",
        f"memory  {result.memory.loc['peak', 'bytes'] * 1e-9:.1f} GB",
        f"step    {result.summary['iteration_time_s']:.3f} s"]
