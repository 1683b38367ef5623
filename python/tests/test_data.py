"""What `python -m foresail.data` writes, read back by plain numpy and by the runtime."""

import json
import os
import pathlib
import sys

import numpy
import pytest

from foresail import ForesailError, data

TEXTS = ["Alpha\nbeta", "Gamma", "δέλτα"]
TYPES = {8: "<u2", 4: "<i4"}


def read_back(prefix):
    """The documents, from the format's description alone."""
    index = pathlib.Path(f"{prefix}.idx").read_bytes()
    assert index[:9] == b"MMIDIDX\0\0"
    version, = numpy.frombuffer(index, "<u8", 1, 9)
    sequences, boundaries = numpy.frombuffer(index, "<u8", 2, 18)
    assert (version, boundaries) == (1, sequences + 1)
    sequences = int(sequences)
    dtype = numpy.dtype(TYPES[index[17]])
    lengths = numpy.frombuffer(index, "<i4", sequences, 34)
    offsets = numpy.frombuffer(index, "<i8", sequences, 34 + 4 * sequences)
    starts = numpy.frombuffer(index, "<i8", sequences + 1, 34 + 12 * sequences)
    assert len(index) == 34 + 12 * sequences + 8 * (sequences + 1)
    assert list(starts) == list(range(sequences + 1))
    tokens = pathlib.Path(f"{prefix}.bin").read_bytes()
    assert len(tokens) == lengths.sum() * dtype.itemsize
    return [numpy.frombuffer(tokens, dtype, length, offset).tolist()
            for length, offset in zip(lengths, offsets)]


def as_bytes(text):
    return [*text.encode(), 256]


def test_bytes_with_an_end_behind_every_document(tmp_path):
    written = data.write(tmp_path / "corpus", TEXTS, data.Bytes())
    assert read_back(tmp_path / "corpus") == [as_bytes(text) for text in TEXTS]
    assert written == data.Written(3, 11 + 6 + 11, 257)
    assert sorted(os.listdir(tmp_path)) == ["corpus.bin", "corpus.idx"]


def test_large_vocabularies_take_four_bytes(tmp_path):
    class Numbers:
        vocab = 70000

        def encode(self, texts):
            return ([int(number) for number in text.split()] for text in texts)

    data.write(tmp_path / "corpus", ["1 69999 3", "4"], Numbers())
    assert read_back(tmp_path / "corpus") == [[1, 69999, 3], [4]]


@pytest.mark.parametrize("layout, expected", [
    ("files", ['{"text": "one"}\n\n{"text": "two"}\n']),
    ("lines", ['{"text": "one"}', '{"text": "two"}']),
    ("jsonl", ["one", "two"]),
    ("auto", ["one", "two"]),
])
def test_what_a_document_is(tmp_path, layout, expected):
    path = tmp_path / "text.jsonl"
    path.write_text('{"text": "one"}\n\n{"text": "two"}\n', encoding="utf-8")
    assert list(data.documents([path], layout)) == expected


def test_the_command_says_what_the_model_needs(tmp_path, capsys):
    (tmp_path / "a.txt").write_text("first", encoding="utf-8")
    (tmp_path / "b.txt").write_text("second", encoding="utf-8")
    assert data.main([str(tmp_path / "a.txt"), str(tmp_path / "b.txt"), "-o",
                      str(tmp_path / "corpus")]) == 0
    assert capsys.readouterr().out == "2 documents, 13 tokens; model.vocab 257 or more\n"
    assert read_back(tmp_path / "corpus") == [as_bytes("first"), as_bytes("second")]


@pytest.mark.parametrize("text, arguments, message", [
    (b"\xff", [], "text: not UTF-8 at byte 0"),
    (b"", [], "no documents to write"),
    (b"{}\n", ["--documents", "jsonl"], 'text:1: no text under "text"'),
    (b'{"text": "x"}\n[\n', ["--documents", "jsonl"], "text:2: no JSON"),
    (None, [], "text: No such file"),
    (b"x", ["--tokenizer", "none.json"], "none.json"),
])
def test_one_message_and_no_files_for_wrong_input(tmp_path, capsys, text, arguments, message):
    if "--tokenizer" in arguments:
        pytest.importorskip("tokenizers")
    if text is not None:
        (tmp_path / "text").write_bytes(text)
    assert data.main([str(tmp_path / "text"), "-o", str(tmp_path / "corpus"), *arguments]) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1
    assert not list(tmp_path.glob("corpus*"))


def test_a_tokenizer_without_its_package_is_said(monkeypatch):
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(ForesailError, match="needs the Python package `tokenizers`"):
        data.Vocabulary("tokenizer.json")


def test_a_tokenizer_of_the_user(tmp_path):
    tokenizers = pytest.importorskip("tokenizers")
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel(
        {"<unk>": 0, "<end>": 1, "alpha": 2, "beta": 3}, unk_token="<unk>"))
    words.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    path = tmp_path / "tokenizer.json"
    words.save(str(path))
    written = data.write(tmp_path / "corpus", ["alpha beta", "beta gamma"],
                         data.Vocabulary(path, end="<end>"))
    assert read_back(tmp_path / "corpus") == [[2, 3, 1], [3, 0, 1]]
    assert written.vocab == 4
    with pytest.raises(ForesailError, match='has no token "<none>"'):
        data.Vocabulary(path, end="<none>")


def test_the_runtime_trains_on_it(tmp_path, commands):
    prose = (commands.root / "docs/reference/scenario.md").read_text(encoding="utf-8")
    data.write(tmp_path / "corpus", prose.split("\n\n"), data.Bytes())
    scenario = tmp_path / "scenario.yaml"
    scenario.write_text(json.dumps({
        "foresail": 1, "model": {"base": "gpt_tiny", "vocab": 257, "layers": 2},
        "cluster": {"name": "host", "gpus": 2}, "layout": {"dp": 2},
        "training": {"global_batch_size": 4, "sequence_length": 32, "precision": "fp32",
                     "steps": 3, "data": {"path": "corpus", "split": [9, 1]}},
        "stack": {"flash_attention": False}}), encoding="utf-8")
    run = commands.train(scenario, tmp_path, ranks=2)
    assert len(run["losses"]) == 3
    # The first loss of a fresh model is near that of 257 equally likely tokens.
    assert abs(run["losses"][0] - numpy.log(257)) < 0.2
    assert len(run["data_waits_s"]) == 3 and min(run["data_waits_s"]) >= 0
