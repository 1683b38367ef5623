#!/usr/bin/env python3
"""Writes the page of scripts/convergence from its runs.

    scripts/convergence_page.py FOLDER_OF_RUNS PAGE
"""

import datetime
import json
import pathlib
import sys

LAST_TOKENS = 204_800  # whose losses are averaged for "at the end"
PARTS = 10

# Run, what it is, and how far its loss may be from the baseline's.
RUNS = [
    ("baseline", "serial block, full attention, AdamW", None),
    ("parallel_block", "parallel block", 0.02),
    ("sliding_window", "sliding window of 32", 0.02),
    ("lamb_batch_4x", "LAMB, 4 times the batch", 0.05),
]

INTRO = """# Convergence

Written by `scripts/convergence_page.py` on {date}, from the {runs} runs of `scripts/convergence`
(`foresail run --launch 1`, one core each): {minutes:.1f} CPU minutes in all.

A GPT of 4 layers and hidden size 128 (`gpt_tiny` with rotary positions) learns the manual of Perl
(Debian's `perl-doc`): {corpus}, a byte a token, in samples of 128. All runs see the same
{tokens:,} tokens in the same order, none twice: the loss of a step is that of text not
seen before, as a held-out loss would be. AdamW: 16 samples a step, rate 2e-3, not tuned. LAMB: 64
samples a step. Both warm up over a twelfth of the tokens and decay by a cosine to a tenth of the
rate ([scenarios](../../scenarios/convergence/baseline.yaml)).

LAMB's rate is the relative change of a matrix per step, so it does not follow from AdamW's. 0.02
was chosen before any run: 1 % a step, and twice that by the square-root rule for 4 times the
batch (You et al. 2020). 0.01 and 0.04 were run too, and ended at losses of 2.071 and 2.477:
worse.
"""

ACCOUNT = """## What to make of it

These are the runs of 2026-11-30, on a busy machine; all but that of the window were started by
hand with the commands of the script, which took them over. The same model with learned positions
was run first (its curves lay flat near 2.6, where it knows pairs of bytes, until its attention
began to work; 2.5 million tokens ended soon after), had the parallel block 3.3 % behind the
baseline, LAMB 17 % behind, and the window 4.6 % ahead. With rotary positions attention works
after the first 200,000 tokens, and what is compared is how models learn, not when they begin to.

LAMB has a quarter of the steps. It is behind from the first tenth on, most where it warms up, and
gains on the baseline until the end: at this size 4 times the batch is not free. MegaScale's claim
is about 4 times the batch on billions of tokens, which this run is too short to confirm or deny.
"""


class Run:
    def __init__(self, folder, name, title, limit):
        self.title, self.limit = title, limit
        with open(folder / name / "run/metrics.jsonl", encoding="utf-8") as lines:
            steps = [json.loads(line) for line in lines]
        self.losses = [step["loss"] for step in steps]
        self.tokens_a_step = round(steps[-1]["tokens_per_s"] * steps[-1]["step_time_s"])
        cpu = folder / name / "cpu.txt"
        self.minutes = sum(map(float, cpu.read_text(encoding="utf-8").split())) / 60
        self.tokens = self.tokens_a_step * len(self.losses)
        self.last = self.mean(self.tokens - LAST_TOKENS, self.tokens)

    def mean(self, first, end):
        """Of the losses of the steps whose tokens lie in [first, end)."""
        chosen = [loss for step, loss in enumerate(self.losses)
                  if first <= step * self.tokens_a_step < end]
        return sum(chosen) / len(chosen)

    def verdict(self, baseline):
        apart = self.last / baseline.last - 1
        if self.limit is None:
            return f"{apart:+.2%}", ""
        held = "held" if apart <= self.limit else "missed"
        return f"{apart:+.2%}", f"at most {self.limit:.0%} above: {held}"


def results(runs):
    baseline = runs[0]
    yield (f"| run | steps | tokens a step | loss over the last {LAST_TOKENS:,} tokens "
           "| to the baseline | asked for | CPU minutes |")
    yield "| --- | --- | --- | --- | --- | --- | --- |"
    for run in runs:
        apart, verdict = ("", "") if run is baseline else run.verdict(baseline)
        yield (f"| {run.title} | {len(run.losses):,} | {run.tokens_a_step:,} | {run.last:.4f} "
               f"| {apart} | {verdict} | {run.minutes:.1f} |")


def curves(runs):
    """Mean losses of each tenth of the tokens."""
    yield "| tokens up to | " + " | ".join(run.title for run in runs) + " |"
    yield "| --- |" + " --- |" * len(runs)
    part = runs[0].tokens // PARTS
    for i in range(PARTS):
        means = [f"{run.mean(i * part, (i + 1) * part):.3f}" for run in runs]
        yield f"| {(i + 1) * part:,} | " + " | ".join(means) + " |"


def page(folder):
    runs = [Run(folder, *entry) for entry in RUNS]
    assert len({run.tokens for run in runs}) == 1
    written = (folder / "corpus.txt").read_text(encoding="utf-8").split(";")[0].strip()
    intro = INTRO.format(date=datetime.date.today(), runs=len(runs), tokens=runs[0].tokens,
                         minutes=sum(run.minutes for run in runs), corpus=written)
    return "\n".join([intro, "## At equal tokens", "", *results(runs), "", "## The curves", "",
                      "Mean losses of each tenth of the tokens:", "", *curves(runs), "", ACCOUNT])


def main():
    folder, target = map(pathlib.Path, sys.argv[1:])
    target.write_text(page(folder), encoding="utf-8")


if __name__ == "__main__":
    main()
