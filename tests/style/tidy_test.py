#!/usr/bin/env python3
"""Every rule of scripts/tidy.py refuses a bad sample, and a good tree passes."""

import importlib.util
import pathlib
import shutil
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
SPEC = importlib.util.spec_from_file_location("tidy", ROOT / "scripts/tidy.py")
tidy = importlib.util.module_from_spec(SPEC)
sys.modules["tidy"] = tidy
SPEC.loader.exec_module(tidy)

DESIGN = """# Design
| folder | holds | may include |
| --- | --- | --- |
| `base/` | units | nothing |
| `sim/` | engine | base |
| `runtime/` | executor | base |
| `scenarios/` | questions | all above but runtime |
| `cli/` | command | all above |
| `tests/`, `docs/` | | |
"""
HEADER = "/// \\file\n/// A sample.\n#pragma once\n"
GOOD = {
    "docs/internals/design.md": DESIGN,
    "base/CMakeLists.txt": "foresail_add_module(base SOURCES src/a.cpp HEADERS "
                           "include/foresail/base/a.h)\n",
    "base/README.md": "# base\n",
    "base/include/foresail/base/a.h": HEADER + "\n#include <vector>\n",
    "base/src/a.cpp": '#include "foresail/base/a.h"\n',
    "sim/CMakeLists.txt": "foresail_add_module(sim SOURCES src/s.cpp)\n",
    "sim/README.md": "# sim, on [base](../base/README.md)\n",
    "sim/src/s.cpp": '#include "foresail/base/a.h"\n',
}


class TidyTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)
        for path, text in GOOD.items():
            self.write(path, text)

    def write(self, path, text):
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")

    def rules(self):
        return [finding.rule for finding in tidy.check(self.root)]

    def refused(self, rule, path, text):
        """`text` at `path` breaks `rule`, and no other."""
        self.write(path, text)
        self.assertEqual(set(self.rules()), {rule}, f"{path}: {text!r}")

    def test_a_good_tree_passes(self):
        self.assertEqual(self.rules(), [])

    def test_the_table_says_who_may_include_whom(self):
        layers = tidy.read_layers(DESIGN)
        self.assertEqual(layers["scenarios"], {"base", "sim"})
        self.assertEqual(layers["cli"], {"base", "sim", "runtime", "scenarios"})

    def test_a_table_that_names_an_unknown_module_is_refused(self):
        with self.assertRaises(SystemExit):
            tidy.read_layers(DESIGN.replace("engine | base", "engine | bass"))
        with self.assertRaises(SystemExit):
            tidy.read_layers("no table")

    def test_an_include_against_the_layers_is_refused(self):
        self.refused("layers", "sim/src/s.cpp", '#include "foresail/runtime/executor.h"\n')

    def test_modules_in_a_circle_are_refused(self):
        self.write("base/src/a.cpp", '#include "foresail/sim/engine.h"\n')
        self.assertEqual(sorted(self.rules()), ["cycle", "layers"])

    def test_third_party_headers_stay_out_of_headers(self):
        for include in ("boost/graph/adjacency_list.hpp", "nlohmann/json.hpp", "nccl.h"):
            self.refused("third_party", "base/include/foresail/base/a.h",
                         f"{HEADER}#include <{include}>\n")

    def test_an_adapter_header_may_include_what_it_adapts(self):
        self.write("base/include/foresail/base/document.h",
                   HEADER + "#include <nlohmann/json.hpp>\n")
        self.write("base/CMakeLists.txt", GOOD["base/CMakeLists.txt"] +
                   "# include/foresail/base/document.h\n")
        self.assertEqual(self.rules(), [])

    def test_a_header_says_what_it_is_and_is_read_once(self):
        self.refused("file_comment", "base/include/foresail/base/a.h", "#pragma once\n")
        self.refused("pragma_once", "base/include/foresail/base/a.h", "/// \\file\n/// A sample.\n")

    def test_using_namespace_in_a_header_is_refused(self):
        self.refused("using_namespace", "base/include/foresail/base/a.h",
                     HEADER + "using namespace std;\n")

    def test_sizes_have_limits(self):
        self.refused("file_size", "base/src/a.cpp", "\n" * 501)
        self.refused("line_width", "base/src/a.cpp", "// " + "x" * 98 + "\n")
        body = "  call();\n" * 69
        function = "int f(int a,\n      int b) {\n" + body + "}\n"
        self.refused("function_size", "base/src/a.cpp", function)
        method = "class A {\n  void f() {\n" + "    call();\n" * 69 + "  }\n};\n"
        self.refused("function_size", "base/src/a.cpp", method)

    def test_a_function_of_seventy_lines_and_a_long_class_pass(self):
        self.write("base/src/a.cpp", "int f() {\n" + "  call();\n" * 68 + "}\n")
        self.assertEqual(self.rules(), [])
        self.write("base/src/a.cpp", "class A {\n" + "  int a();\n" * 100 + "};\n")
        self.assertEqual(self.rules(), [])

    def test_a_long_table_inside_a_function_is_not_a_second_function(self):
        table = "int f() {\n  const std::vector<int> a = {\n" + "      1,\n" * 70 + "      2};\n"
        self.write("base/src/a.cpp", table + "  for (int x : a) {\n    call(x);\n  }\n}\n")
        self.assertEqual(self.rules(), ["function_size"])

    def test_a_long_python_function_is_refused(self):
        self.refused("function_size", "scripts/a.py", "def f():\n" + "    call()\n" * 70)

    def test_unfinished_work_is_refused(self):
        self.refused("unfinished", "base/src/a.cpp", "// TO" "DO: later\n")
        self.refused("unfinished", "base/src/a.cpp", "// FIX" "ME\n")

    def test_foreign_randomness_is_refused(self):
        for line in ("std::normal_distribution<double> d;", "std::random_device r;",
                     "int x = rand();", "srand(1);"):
            self.refused("random", "sim/src/s.cpp", line + "\n")

    def test_the_wall_clock_is_read_only_by_runtime_bench_and_cli(self):
        line = "auto t = std::chrono::steady_clock::now();\n"
        self.refused("clock", "sim/src/s.cpp", line)
        self.write("sim/src/s.cpp", "")
        self.write("cli/main.cpp", line)
        self.write("cli/CMakeLists.txt", "add_executable(foresail main.cpp)\n")
        self.write("cli/README.md", "# cli\n")
        self.assertEqual(self.rules(), [])

    def test_libraries_do_not_print(self):
        for line in ("std::cout << 1;", 'std::printf("x");', 'fmt::print("x");'):
            self.refused("print", "sim/src/s.cpp", line + "\n")

    def test_comments_and_strings_are_not_code(self):
        self.write("sim/src/s.cpp", "// std::cout is not used\n/* rand()\nsteady_clock */\n"
                   'auto text = "std::random_device";\n')
        self.assertEqual(self.rules(), [])

    def test_an_unlisted_file_is_refused(self):
        self.refused("unlisted", "sim/src/forgotten.cpp", "int x;\n")

    def test_a_dead_link_and_a_module_without_a_page_are_refused(self):
        self.refused("dead_link", "docs/a.md", "[gone](gone.md)\n")
        (self.root / "docs/a.md").unlink()
        (self.root / "sim/README.md").unlink()
        self.assertEqual(self.rules(), ["module_page"])

    def test_white_space_is_refused(self):
        self.refused("white_space", "scripts/a.sh", "echo \n")

    @unittest.skipUnless(shutil.which("clang-format"), "clang-format is not installed")
    def test_text_that_clang_format_would_change_is_refused(self):
        self.write(".clang-format", (ROOT / ".clang-format").read_text(encoding="utf-8"))
        self.refused("format", "base/src/a.cpp", "int  f( );\n")


if __name__ == "__main__":
    unittest.main()
