"""same_code_test.py: tests which differences same_code.py and compile_cost.py report, on synthetic ELF files
and CLIs."""

import os
import struct
import subprocess
import sys
import tempfile
import unittest
from unittest import mock

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
import builds  # noqa: E402
import compile_cost  # noqa: E402
import same_code  # noqa: E402


def elf(sections):
    """Builds a 64-bit ELF file of {name: bytes}; an int stands for a section without bytes in the file."""
    names, body, headers = b"\0", b"", [bytes(64)]
    for name, data in [*sections.items(), (".shstrtab", None)]:
        at, start = len(names), 64 + len(body)
        names += name.encode() + b"\0"
        data = names if data is None else data
        kind, size = (8, data) if isinstance(data, int) else (1, len(data))
        body += b"" if kind == 8 else data
        headers.append(struct.pack("<IIQQQQIIQQ", at, kind, 0, 0, start, size, 0, 0, 1, 0))
    head = b"\x7fELF\x02\x01\x01" + bytes(9) + struct.pack("<HHIQQQIHHHHHH", 2, 190, 1, 0, 0, 64 + len(body), 0, 64, 0, 0, 64,
                                                          len(headers), len(headers) - 1)
    return head + body + b"".join(headers)


CUBIN = {".text.luattn_fwd": b"code", ".nv.constant2.luattn_fwd": b"\1", ".nv.constant0.luattn_fwd": bytes(8), ".nv.constant4": b"\2",
         ".nv.info": b"\3", ".nv.shared.luattn_fwd": 1024}


class SameCode(unittest.TestCase):
    def code(self, **changed):
        return {"code": same_code.code_of(elf({**CUBIN, **changed}))}

    def test_sections(self):
        self.assertEqual(dict(same_code.elf_sections(elf({".text.a": b"abc", ".bss": 7})))[".text.a"], b"abc")
        self.assertNotIn(".bss", dict(same_code.elf_sections(elf({".bss": 7}))))
        self.assertEqual(set(self.code()["code"]), {".text.luattn_fwd", ".nv.constant2.luattn_fwd"})
        with self.assertRaises(ValueError):
            same_code.code_of(b".version 8.0")

    def test_differences(self):
        same, different = self.code(), same_code.difference
        self.assertIsNone(different(same, self.code(**{".nv.info": b"other", ".nv.constant4": b"other"})))
        self.assertEqual(different(same, self.code(**{".text.luattn_fwd": b"edoc"})), ".text.luattn_fwd 4 bytes")
        self.assertEqual(different(same, self.code(**{".text.luattn_fwd": b"longer"})), ".text.luattn_fwd 4 to 6 bytes")
        self.assertEqual(different(same, self.code(**{".text.luattn_new": b"x"})), ".text.luattn_new 0 to 1 bytes")
        self.assertEqual(different(same, self.code(**{".nv.constant2.luattn_fwd": b"\7"})), ".nv.constant2.luattn_fwd 1 bytes")

    def test_refusals(self):
        refused = {"error": "no registers"}
        self.assertIsNone(same_code.difference(refused, dict(refused)))
        self.assertIn("new: no registers", same_code.difference(self.code(), refused))
        self.assertIn("old: no registers", same_code.difference(refused, self.code()))
        self.assertIn("other words", same_code.difference(refused, {"error": "other words"}))
        self.assertEqual(same_code.difference({"code": {}}, {"code": {}}), "neither has code")

    def test_cells(self):
        specs = builds.examples(f"{HERE}/../../examples", [])
        cells = same_code.cells_of(specs)
        self.assertEqual(len(cells), len(specs) * 2 * 4 * 3 * 2 + 3 * 2 * 4 * (1 + 1 + 2))
        self.assertEqual(len(set(cells)), len(cells))
        self.assertEqual(len(same_code.cells_of(specs, passes=("forward",), quick=True)), len(specs) * 2 * 4)
        self.assertEqual({c.dim for c in same_code.cells_of(specs, dims=[64])}, {64})
        self.assertEqual(len(same_code.cells_of(specs, dims=[192])), len(specs) * 2 * 4 * 2)
        self.assertEqual([os.path.basename(s) for s in builds.examples(f"{HERE}/../../examples", ["t5"])], ["t5_relative_bias.lua"])


class Programs(unittest.TestCase):
    """Tests complete runs, with scripts as CLIs."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        with open(f"{self.folder}/one.lua", "w") as f:
            f.write("return attention {}")

    def cli(self, name, text):
        path = f"{self.folder}/{name}"
        with open(path, "w") as f:
            f.write(f"#!/bin/sh\n{text}\n")
        os.chmod(path, 0o755)
        return path

    def cubin(self, name, **changed):
        with open(f"{self.folder}/{name}.cubin", "wb") as f:
            f.write(elf({**CUBIN, **changed}))
        return self.cli(name, f"echo \"$*\" >>{self.folder}/{name}.asked; cat {self.folder}/{name}.cubin")

    def run_it(self, old, new, *more):
        return subprocess.run([sys.executable, "-B", f"{HERE}/same_code.py", old, new, "--examples", self.folder, "--cubin", *more],
                              capture_output=True, text=True)

    def test_same_and_other_code(self):
        old, new = self.cubin("old"), self.cubin("new", **{".nv.info": b"other"})
        ran = self.run_it(old, new, "--quick")
        self.assertEqual((ran.returncode, ran.stdout[:24]), (0, "16 cells: 0 differ; 0 ar"), ran.stderr)
        ran = self.run_it(old, self.cubin("other", **{".text.luattn_fwd": b"edoc"}), "--quick", "--arch", "sm_80", "--dtype", "f16", "--pass", "forward")
        self.assertEqual(ran.returncode, 1)
        self.assertTrue(ran.stdout.startswith("DIFFERS one sm_80 f16 D128 forward: .text.luattn_fwd 4 bytes\n1 cells: 1 differ"), ran.stdout)

    def test_what_is_kept(self):
        old, new, cache = self.cubin("old"), self.cubin("new"), f"{self.folder}/cache"
        for _ in range(2):
            self.assertEqual(self.run_it(old, new, "--quick", "--cache", cache).returncode, 0)
        with open(f"{self.folder}/old.asked") as a, open(f"{self.folder}/new.asked") as b:
            self.assertEqual((len(a.readlines()), len(b.readlines())), (16, 32))
        old = self.cli("old", f"echo another >/dev/null; cat {self.folder}/old.cubin; exit 3")  # the program changed
        self.assertEqual(self.run_it(old, new, "--quick", "--cache", cache).returncode, 1)

    def test_mistakes(self):
        new = self.cubin("new")
        self.assertIn("is no program", self.run_it(self.folder, new).stderr)
        self.assertIn("no cell is left", self.run_it(new, new, "--spec", "none").stderr)
        self.assertNotEqual(self.run_it(new, new, "--spec", "none").returncode, 0)


class Cost(unittest.TestCase):
    def test_counts(self):
        count = compile_cost.instructions
        self.assertEqual(count("perf", "a plan\n1234,,instructions:u,5,100.00,,\n"), 1234)
        self.assertIsNone(count("perf", "<not supported>,,instructions:u,0,100.00,,\n"))
        self.assertEqual(count("exp-bbv", "==1== # Thread 1\n==1== #   Total instructions: 40\n==1== #   Total instructions: 2\n"), 42)
        self.assertEqual(count("callgrind", "==1== Events    : Ir\n==1== Collected : 99\n"), 99)

    def test_summary(self):
        self.assertEqual(compile_cost.summary({"a": 0.5, "b": 2.0}), "geometric mean 1.0000, maximum 2.0000 (b)")

    def test_a_counter_that_is_missing(self):
        with mock.patch.dict(compile_cost.COUNTERS, {"perf": ["/nonexistent"]}):
            self.assertFalse(compile_cost.works("perf"))


if __name__ == "__main__":
    unittest.main()
