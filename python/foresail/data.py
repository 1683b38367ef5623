"""Writes text as training data: PREFIX.bin and PREFIX.idx in Megatron-LM's indexed format.

    python -m foresail.data book.txt more.jsonl -o corpus
    python -m foresail.data book.txt -o corpus --tokenizer tokenizer.json --end "<|endoftext|>"

Tokens are those of a tokenizer.json (the package `tokenizers`), or without one the bytes of the
text, with 256 behind every document. `training.data: corpus` in a scenario trains on them.
"""

import argparse
import contextlib
import json
import os
import pathlib
import struct
import sys
from dataclasses import dataclass

import numpy

from . import ForesailError

MAGIC = b"MMIDIDX\0\0"
TYPE_CODES = {"uint16": 8, "int32": 4}
END_OF_DOCUMENT = 256  # behind the 256 values of a byte
UINT16_VOCAB = 65500  # Megatron-LM's bound for two bytes a token
LENGTH_MAX = 2**31 - 1  # the index holds lengths as int32
BATCH = 1024  # documents that are tokenized at once


@dataclass
class Written:
    """What came to be."""

    documents: int
    tokens: int
    vocab: int


def documents(paths, layout, key="text"):
    """The texts of all documents in `paths`. layout: "lines" (each line is one), "jsonl" (each line
    is an object with the text under `key`), "files" (each file is one) or "auto" (jsonl for names
    that end so, else files). Empty documents are left out."""
    for path in map(pathlib.Path, paths):
        kind = layout
        if layout == "auto":
            kind = "jsonl" if path.suffix == ".jsonl" else "files"
        try:
            yield from filter(None, _documents_of(path, kind, key))
        except UnicodeDecodeError as error:
            raise ForesailError(f"{path}: not UTF-8 at byte {error.start} of a line or of the file"
                                ) from error
        except OSError as error:
            raise ForesailError(f"{path}: {error.strerror}") from error


def _documents_of(path, kind, key):
    if kind == "files":
        yield path.read_bytes().decode("utf-8")
        return
    with path.open("rb") as lines:
        for number, raw in enumerate(lines, 1):
            line = raw.decode("utf-8").rstrip("\r\n")
            if kind == "lines":
                yield line
            elif line:
                yield _text_of(line, key, f"{path}:{number}")


def _text_of(line, key, where):
    try:
        entry = json.loads(line)
    except ValueError as error:
        raise ForesailError(f"{where}: no JSON: {error}") from error
    if not isinstance(entry, dict) or not isinstance(entry.get(key), str):
        raise ForesailError(f'{where}: no text under "{key}"')
    return entry[key]


class Bytes:
    """Bytes as tokens, and END_OF_DOCUMENT."""

    vocab = END_OF_DOCUMENT + 1

    def encode(self, texts):
        for text in texts:
            yield [*text.encode("utf-8"), END_OF_DOCUMENT]


class Vocabulary:
    """A tokenizer.json. `end`: the token behind every document, or None."""

    def __init__(self, path, end=None):
        try:
            import tokenizers
        except ImportError as error:
            raise ForesailError("a tokenizer.json needs the Python package `tokenizers`, which is "
                                "not installed; without one, tokens are bytes") from error
        if not os.path.exists(path):
            raise ForesailError(f"{path}: no such file")
        try:
            self._tokenizer = tokenizers.Tokenizer.from_file(str(path))
        except Exception as error:  # the package raises plain Exception
            raise ForesailError(f"{path}: no tokenizer: {error}") from error
        ids = self._tokenizer.get_vocab(with_added_tokens=True).values()
        self.vocab = max(ids, default=-1) + 1
        self._end = [] if end is None else [self._tokenizer.token_to_id(end)]
        if None in self._end:
            raise ForesailError(f'{path}: has no token "{end}"')

    def encode(self, texts):
        for encoding in self._tokenizer.encode_batch(texts, add_special_tokens=False):
            yield [*encoding.ids, *self._end]


def write(prefix, texts, tokenizer):
    """Writes the documents `texts` (an iterable of str) to PREFIX.bin and PREFIX.idx, both whole or
    neither. Documents without tokens are left out. Returns a Written."""
    dtype = numpy.dtype("uint16" if tokenizer.vocab < UINT16_VOCAB else "int32")
    lengths = []
    names = {end: f"{os.fspath(prefix)}.{end}" for end in ("bin", "idx")}
    parts = {end: name + ".part" for end, name in names.items()}
    try:
        with open(parts["bin"], "wb") as file:
            for batch in _batches(texts):
                for tokens in filter(None, tokenizer.encode(batch)):
                    if len(tokens) > LENGTH_MAX:
                        raise ForesailError(f"document {len(lengths)}: {len(tokens)} tokens, more "
                                            f"than {LENGTH_MAX}")
                    file.write(numpy.asarray(tokens).astype(dtype.newbyteorder("<")).tobytes())
                    lengths.append(len(tokens))
        if not lengths:
            raise ForesailError(f"{prefix}: no documents to write")
        with open(parts["idx"], "wb") as file:
            file.write(_index(numpy.asarray(lengths, dtype="<i4"), dtype))
        for end in names:
            os.replace(parts[end], names[end])
    except OSError as error:
        raise ForesailError(f"{error.filename}: {error.strerror}") from error
    finally:
        for part in parts.values():
            with contextlib.suppress(OSError):
                os.remove(part)
    return Written(len(lengths), int(numpy.sum(lengths, dtype=numpy.int64)), tokenizer.vocab)


def _batches(texts):
    batch = []
    for text in texts:
        batch.append(text)
        if len(batch) == BATCH:
            yield batch
            batch = []
    if batch:
        yield batch


def _index(lengths, dtype):
    """The .idx: one sequence per document."""
    count = len(lengths)
    ends = numpy.cumsum(lengths, dtype="<i8")
    offsets = (ends - lengths) * dtype.itemsize
    header = MAGIC + struct.pack("<QBQQ", 1, TYPE_CODES[dtype.name], count, count + 1)
    return b"".join([header, lengths.tobytes(), offsets.astype("<i8").tobytes(),
                     numpy.arange(count + 1, dtype="<i8").tobytes()])


def _parser():
    parser = argparse.ArgumentParser(prog="python -m foresail.data", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", help="text, UTF-8")
    parser.add_argument("-o", "--output", required=True, metavar="PREFIX",
                        help="writes PREFIX.bin and PREFIX.idx")
    parser.add_argument("--documents", choices=["auto", "lines", "jsonl", "files"], default="auto",
                        help="what a document is: a line, the text of a JSON line, or a file; "
                             "auto: JSON lines in .jsonl, else files")
    parser.add_argument("--key", default="text", help="of the text in a JSON line")
    parser.add_argument("--tokenizer", metavar="FILE", help="a tokenizer.json; without: bytes")
    parser.add_argument("--end", metavar="TOKEN",
                        help="of the tokenizer, behind every document; bytes have 256")
    return parser


def main(arguments=None):
    """Exit status 0, or 2 with one message."""
    parser = _parser()
    given = parser.parse_args(arguments)
    if given.end is not None and given.tokenizer is None:
        parser.error("--end is a token of --tokenizer")
    try:
        tokenizer = Bytes() if given.tokenizer is None else Vocabulary(given.tokenizer, given.end)
        written = write(given.output, documents(given.files, given.documents, given.key), tokenizer)
    except ForesailError as error:
        print(f"foresail.data: {error}", file=sys.stderr)
        return 2
    print(f"{written.documents} documents, {written.tokens} tokens; model.vocab {written.vocab} or "
          "more")
    return 0


if __name__ == "__main__":
    sys.exit(main())
