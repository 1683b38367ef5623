#!/usr/bin/env python3
"""Checks the project's house rules that no compiler checks.

    scripts/tidy.py [ROOT]

Reads which module may include which out of the table in docs/internals/design.md. Prints one line
per broken rule, `file:line: rule: what is wrong`, and exits with 1 if there is any.
"""

import ast
import pathlib
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass, field

LINE_WIDTH = 100
FILE_LINES = 500
FUNCTION_LINES = 70
CLANG_FORMAT_MAJOR = 14

# Public headers in which a third party's types may stand, and whose.
ADAPTERS = {
    "base/include/foresail/base/document.h": ("nlohmann/",),
    "runtime/include/foresail/runtime/tensor.h": ("torch/", "ATen/", "c10/"),
}
# Where the wall clock may be read, and where text may be printed.
CLOCK_FOLDERS = {"runtime", "bench", "cli", "tests"}
# What a prediction itself took is reported beside the answer, never part of it.
CLOCK_FILES = {"scenarios/src/simulate.cpp"}
PRINT_FOLDERS = {"cli", "bench", "tests", "examples"}

CXX_SUFFIXES = {".h", ".cpp"}
CODE_SUFFIXES = CXX_SUFFIXES | {".py", ".pyi", ".sh", ".cmake"}
SKIPPED_FOLDERS = {"build", ".git", ".venv", "dist", "__pycache__", ".ipynb_checkpoints"}

INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')
RANDOM = re.compile(r"std::\w+_distribution\b|\brandom_device\b|(?<![\w.>])s?rand\s*\(")
CLOCK = re.compile(r"\b(system_clock|steady_clock|high_resolution_clock|gettimeofday)\b")
PRINT = re.compile(r"\bstd::(cout|cerr|clog)\b|(?<![\w])(f?printf|puts|fmt::print)\s*\(")
UNFINISHED = re.compile(r"\b(TO" r"DO|FIX" r"ME|XX" r"X)\b")
CLASS_LIKE = re.compile(r"^\s*(template\s*<.*>\s*)?(class|struct|union|enum|namespace|extern)\b")
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


@dataclass(order=True)
class Finding:
    file: str
    line: int
    rule: str
    what: str

    def __str__(self):
        return f"{self.file}:{self.line}: {self.rule}: {self.what}"


@dataclass
class Source:
    """One text file: its path from the root, and its lines with and without comments."""

    path: str
    lines: list
    code: list = field(default_factory=list)

    @property
    def folder(self):
        return self.path.split("/")[0]

    @property
    def suffix(self):
        return pathlib.PurePath(self.path).suffix


def strip_cxx_comments(lines):
    """The lines with comments and the contents of string literals blanked."""
    blanked, in_block = [], False
    token = re.compile(r'"(?:\\.|[^"\\])*"|\'(?:\\.|[^\'\\])*\'|//.*|/\*.*?\*/|/\*.*')
    for line in lines:
        if in_block:
            end = line.find("*/")
            if end < 0:
                blanked.append("")
                continue
            line, in_block = " " * (end + 2) + line[end + 2:], False
        if INCLUDE.match(line):
            blanked.append(line)
            continue
        kept = token.sub(lambda m: m[0][0] * 2 if m[0][0] in "\"'" else " " * len(m[0]), line)
        opened = re.sub(r'"(?:\\.|[^"\\])*"|//.*', "", line)
        in_block = opened.rfind("/*") > opened.rfind("*/")
        blanked.append(kept)
    return blanked


def read_sources(root):
    """All text files that the rules look at, in order of their paths."""
    sources = []
    for path in sorted(root.rglob("*")):
        relative = path.relative_to(root)
        if set(relative.parts) & SKIPPED_FOLDERS or not path.is_file():
            continue
        is_code = path.suffix in CODE_SUFFIXES or path.name == "CMakeLists.txt"
        if not is_code and path.suffix != ".md":
            continue
        lines = path.read_text(encoding="utf-8").split("\n")
        if lines and lines[-1] == "":
            lines.pop()
        source = Source(relative.as_posix(), lines)
        source.code = strip_cxx_comments(lines) if path.suffix in CXX_SUFFIXES else lines
        sources.append(source)
    return sources


def read_layers(design):
    """{module: modules it may include} from the design page's table."""
    layers, above = {}, []
    rows = re.findall(r"^\| `(\w+)/`(?:, `\w+/`)* \|[^|]*\|([^|]*)\|", design, re.MULTILINE)
    for module, cell in rows:
        cell = cell.strip()
        if not cell:
            continue
        if cell == "nothing":
            allowed = set()
        elif cell.startswith("all above"):
            excepted = cell.removeprefix("all above").removeprefix(" but ")
            allowed = set(above) - set(re.findall(r"\w+", excepted))
        else:
            allowed = set(re.findall(r"\w+", cell))
        unknown = allowed - set(above)
        if unknown:
            raise SystemExit(f"docs/internals/design.md: {module} may include {sorted(unknown)}, "
                             "which the table does not name above it")
        layers[module] = allowed
        above.append(module)
    if len(layers) < 2:
        raise SystemExit("docs/internals/design.md: no table of modules found")
    return layers


def check_layers(sources, layers):
    """Includes of modules that the table does not allow."""
    for source in sources:
        if source.folder not in layers or source.suffix not in CXX_SUFFIXES:
            continue
        allowed = layers[source.folder] | {source.folder}
        for number, line in enumerate(source.code, 1):
            match = INCLUDE.match(line)
            if not match or not match[2].startswith("foresail/"):
                continue
            module = match[2].split("/")[1]
            if module not in allowed:
                yield Finding(source.path, number, "layers",
                              f"{source.folder} may not include {module}")


def check_cycles(sources, layers):
    """Modules that include each other in a circle, whatever the table says."""
    edges = {}
    for source in sources:
        if source.folder in layers and source.suffix in CXX_SUFFIXES:
            for line in source.code:
                match = INCLUDE.match(line)
                if match and match[2].startswith("foresail/"):
                    edges.setdefault(source.folder, set()).add(match[2].split("/")[1])
    for start in sorted(edges):
        trail = find_cycle(edges, start)
        if trail and min(trail) == start:
            yield Finding(start, 1, "cycle", " -> ".join(trail + [start]))


def find_cycle(edges, start):
    """The shortest way from `start` back to itself, or nothing."""
    trails = [[start]]
    seen = set()
    while trails:
        trail = trails.pop(0)
        for module in sorted(edges.get(trail[-1], ())):
            if module == start and len(trail) > 1:
                return trail
            if module not in seen and module != trail[-1]:
                seen.add(module)
                trails.append(trail + [module])
    return []


def check_headers(sources, layers):
    """Rules for headers alone."""
    for source in sources:
        if source.suffix != ".h" or source.folder not in layers:
            continue
        if not source.lines or source.lines[0] != "/// \\file":
            yield Finding(source.path, 1, "file_comment", "a header starts with `/// \\file`")
        if "#pragma once" not in source.lines:
            yield Finding(source.path, 1, "pragma_once", "a header holds `#pragma once`")
        is_public = "/include/" in source.path
        adapted = ADAPTERS.get(source.path, ())
        for number, line in enumerate(source.code, 1):
            if re.match(r"\s*using\s+namespace\b", line):
                yield Finding(source.path, number, "using_namespace", "not in a header")
            match = INCLUDE.match(line)
            if is_public and match and match[1] == "<" and re.search(r"[/.]", match[2]):
                if not match[2].startswith(adapted or ("\0",)):
                    yield Finding(source.path, number, "third_party",
                                  f"<{match[2]}> belongs in a .cpp file or an adapter header")


def check_lines(sources):
    """Sizes of files and lines; what must not stand in code."""
    for source in sources:
        if source.suffix == ".md":
            continue
        if len(source.lines) > FILE_LINES:
            yield Finding(source.path, FILE_LINES + 1, "file_size",
                          f"{len(source.lines)} lines, more than {FILE_LINES}")
        for number, line in enumerate(source.lines, 1):
            if len(line) > LINE_WIDTH:
                yield Finding(source.path, number, "line_width",
                              f"{len(line)} columns, more than {LINE_WIDTH}")
            if line != line.rstrip() or "\t" in line:
                yield Finding(source.path, number, "white_space", "a tab, or blanks at the end")
            if UNFINISHED.search(line):
                yield Finding(source.path, number, "unfinished", line.strip())


def check_purity(sources):
    """Sources of chance, of wall-clock time and of output, where there must be none."""
    for source in sources:
        if source.suffix not in CXX_SUFFIXES:
            continue
        for number, line in enumerate(source.code, 1):
            if RANDOM.search(line):
                yield Finding(source.path, number, "random", "use base/rng.h")
            may_read = source.folder in CLOCK_FOLDERS or source.path in CLOCK_FILES
            if CLOCK.search(line) and not may_read:
                yield Finding(source.path, number, "clock", f"no wall clock in {source.folder}/")
            if PRINT.search(line) and source.folder not in PRINT_FOLDERS:
                yield Finding(source.path, number, "print", f"{source.folder}/ is a library")


def cxx_functions(code):
    """(first line, number of lines) of function bodies, judged by their indentation.

    Holds for text in the project's clang-format: namespaces do not indent, a body ends with a `}`
    that stands in the column where its function began.
    """
    start, head, in_class = 0, "", False
    code = [line.rstrip() for line in code]
    for number, line in enumerate(code, 1):
        if not line or line.lstrip().startswith(("#", "public:", "private:")):
            start = 0
            continue
        indent = len(line) - len(line.lstrip())
        if not start or indent <= len(head) - len(head.lstrip()):
            start, head = number, line
        if not line.endswith("{"):
            if line.endswith((";", "}", ":")):
                start = 0
            continue
        column = len(head) - len(head.lstrip())
        if column == 0:
            in_class = bool(CLASS_LIKE.match(head)) and not head.startswith("namespace")
        if CLASS_LIKE.match(head) or column > (2 if in_class else 0):
            start = 0
            continue
        for end in range(number, len(code)):
            closing = code[end]
            if closing.startswith(" " * column + "}"):
                if closing.strip() == "}":
                    yield start, end + 2 - start
                break
        start = 0


def check_functions(sources):
    """Functions that are too long."""
    for source in sources:
        functions = []
        if source.suffix in CXX_SUFFIXES:
            functions = cxx_functions(source.code)
        elif source.suffix == ".py":
            functions = [(node.lineno, node.end_lineno + 1 - node.lineno)
                         for node in ast.walk(ast.parse("\n".join(source.lines)))
                         if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))]
        for start, length in functions:
            if length > FUNCTION_LINES:
                yield Finding(source.path, start, "function_size",
                              f"{length} lines, more than {FUNCTION_LINES}")


def check_listed(sources, layers):
    """Files that no CMakeLists.txt of their folder names, so that nothing builds or checks them."""
    lists = {s.path: "\n".join(s.lines) for s in sources if s.path.endswith("CMakeLists.txt")}
    included = {}
    for source in sources:
        if source.suffix == ".cmake":
            included.setdefault(source.folder, []).append("\n".join(source.lines))
    for source in sources:
        if source.suffix not in CXX_SUFFIXES or source.folder not in {*layers, "tests"}:
            continue
        parts = source.path.split("/")
        own = "/".join(parts[:2 if source.folder == "tests" else 1]) + "/CMakeLists.txt"
        text = "\n".join([lists.get(own, ""), *included.get(source.folder, [])])
        is_private = source.suffix == ".h" and "/include/" not in source.path
        is_listed = re.search(rf"(?<!\w){re.escape(parts[-1])}(?!\w)", text)
        has_own_list = "/".join(parts[:-1]) + "/CMakeLists.txt" in lists
        if not is_private and not is_listed and not has_own_list:
            yield Finding(source.path, 1, "unlisted", "in no CMakeLists.txt")


def check_pages(sources, layers, root):
    """Each module has a README; links between pages lead somewhere."""
    paths = {source.path for source in sources}
    for module in sorted(layers):
        if f"{module}/CMakeLists.txt" in paths and f"{module}/README.md" not in paths:
            yield Finding(f"{module}/README.md", 1, "module_page", "a module has a page of its own")
    for source in sources:
        if source.suffix != ".md":
            continue
        for number, line in enumerate(source.lines, 1):
            for target in LINK.findall(line):
                target = target.split("#")[0]
                if not target or "://" in target or target.startswith("mailto:"):
                    continue
                if not (root / source.path).parent.joinpath(target).exists():
                    yield Finding(source.path, number, "dead_link", target)


def check_format(sources, root):
    """What clang-format would change; judged by one version, since versions differ."""
    program = shutil.which(f"clang-format-{CLANG_FORMAT_MAJOR}") or shutil.which("clang-format")
    if not program:
        return
    version = subprocess.run([program, "--version"], capture_output=True, text=True, check=True)
    if f"version {CLANG_FORMAT_MAJOR}." not in version.stdout:
        return
    files = [source.path for source in sources if source.suffix in CXX_SUFFIXES]
    if not files or not (root / ".clang-format").exists():
        return
    result = subprocess.run([program, "--dry-run", "--style=file", *files], cwd=root,
                            capture_output=True, text=True, check=False)
    seen = set()
    for match in re.finditer(r"^([^:\n]+):(\d+):\d+: \w+: code should be", result.stderr, re.M):
        if match[1] not in seen:
            seen.add(match[1])
            yield Finding(match[1], int(match[2]), "format", "run clang-format -i on it")


def check(root):
    """All findings of all rules, in order."""
    design = (root / "docs/internals/design.md").read_text(encoding="utf-8")
    layers = read_layers(design)
    sources = read_sources(root)
    findings = [*check_layers(sources, layers), *check_cycles(sources, layers),
                *check_headers(sources, layers), *check_lines(sources), *check_purity(sources),
                *check_functions(sources), *check_listed(sources, layers),
                *check_pages(sources, layers, root), *check_format(sources, root)]
    return sorted(findings)


def main():
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ".").resolve()
    findings = check(root)
    for finding in findings:
        print(finding)
    print(f"tidy: {len(findings)} findings")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
