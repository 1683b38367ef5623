"""Answers as pandas frames over the documents that the command prints with --json."""

import pandas as pd


class Result:
    """The answer of simulate(): one step.

    document: the whole answer, with the keys of docs/reference/result.md.
    trace_document: the predicted trace, with the keys of docs/reference/trace.md.
    reasons: why the plan could not run for lack of memory; empty if it fits.
    """

    def __init__(self, document, trace_document, text, reasons):
        self.document = document
        self.trace_document = trace_document
        self.reasons = reasons
        self._text = text

    def __str__(self):
        return self._text

    def __repr__(self):
        return f"<foresail.Result {self.document['iteration_time_s']:.4g} s per step>"

    @property
    def summary(self):
        """All single values of the answer, by key."""
        single = {key: value for key, value in self.document.items()
                  if not isinstance(value, (dict, list))}
        return pd.Series(single, name="value", dtype=object)

    @property
    def breakdown(self):
        """Where the step's time goes: seconds and share, by category."""
        seconds = pd.Series(self.document["breakdown_s"], name="seconds", dtype=float)
        frame = seconds.to_frame()
        frame["share"] = frame["seconds"] / frame["seconds"].sum()
        return frame.rename_axis("category")

    @property
    def memory(self):
        """Bytes of a rank of the stage that needs most, by category, their sum as `peak`, and
        `upper_bound`, what it needs at most."""
        return pd.Series(self.document["memory_bytes"], name="bytes", dtype="int64").to_frame(
            ).rename_axis("category")

    @property
    def links(self):
        """The most loaded links, one row each; empty on a single host."""
        return pd.DataFrame(self.document["network"]["most_loaded_links"])

    @property
    def trace(self):
        """Spans of the ranks that the trace shows; times in seconds from the step's start."""
        document = self.trace_document
        frame = pd.DataFrame(document["spans"], columns=document["columns"])
        frame["lane"] = pd.Categorical.from_codes(frame["lane"], document["lanes"])
        for edge in ("start", "end"):
            frame[f"{edge}_s"] = frame.pop(f"{edge}_ps") * 1e-12
        return frame


class Comparison:
    """The answer of compare(): predicted against measured.

    document: the whole answer; rows: one row per class of operation, error as a fraction.
    """

    def __init__(self, document):
        self.document = document

    @property
    def rows(self):
        """count, predicted_s, measured_s and error, by class of operation."""
        return pd.DataFrame(self.document["rows"]).set_index("op_class")

    def __repr__(self):
        return f"<foresail.Comparison of {len(self.document['rows'])} classes of operations>"
