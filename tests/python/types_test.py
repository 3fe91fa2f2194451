"""types_test.py: what mypy says of the package, and of results: tensors of the library of q, by what is asked for. Exits with 77 without torch or mypy."""

import importlib.util
import os
import re
import subprocess
import sys
import tempfile
import unittest

from with_torch import ROOT  # exits without torch, so first

if importlib.util.find_spec("mypy") is None:
    print("no mypy: skipped")
    sys.exit(77)

# Calls, and what mypy reveals of each.
REVEALED = (
    ("causal(q, k, v)", "Tensor"), ("causal(q, k, v, layout='bshd', cap=3.0)", "Tensor"), ("causal(q, k, v, return_lse=True)", "tuple[Tensor, Tensor]"),
    ("causal(q, k, v, return_lse=True)[1]", "Tensor"), ("causal(q, k, v, return_state=True)", "tuple[Tensor, Tensor, Tensor]"),
    ("causal(a, a, a)", "ndarray"), ("causal(a, a, a, return_lse=True)[1]", "ndarray"), ("causal.weights(q, k, v)", "Tensor"),
    ("causal.merge([q], [q])", "tuple[Tensor, Tensor]"), ("luattn.merge([q], [q])", "tuple[Tensor, Tensor]"), ("causal.plan(q, k, v)", "str"),
    ("causal.gradients(q, q, k, v, q, q)[0]", "Tensor"), ("causal.gradients(q, q, k, v, q, q)[3]", "dict[str, Tensor]"), ("causal.mask(4, 4)", "Mask"), ("causal.mask((4, 4))", "GridMask"),
    ("causal.explain(q, k, v)", "Explanation"), ("flex_attention(q, k, v)", "Tensor"), ("flex_attention(q, k, v, return_lse=True)", "tuple[Tensor, Tensor]"),
    ("flash_attn_func(q, k, v)", "Tensor | Any"), ("create_block_mask(mod, 1, 1, 4, 4)", "BlockMask"),
)  # fmt: skip


class Types(unittest.TestCase):
    def test_package(self):
        ran = subprocess.run([sys.executable, "-m", "mypy"], capture_output=True, text=True, cwd=ROOT)
        self.assertEqual(ran.returncode, 0, ran.stdout + ran.stderr)

    def test_results(self):
        lines = [
            "import numpy, torch, luattn", "from luattn.flex import create_block_mask, flex_attention", "from luattn.flash_attn import flash_attn_func",
            "causal = luattn.attention('causal')", "q = k = v = torch.zeros(1, 1, 4, 8)", "a = numpy.zeros((1, 1, 4, 8))",
            "def mod(b: torch.Tensor, h: torch.Tensor, i: torch.Tensor, j: torch.Tensor) -> torch.Tensor: return i >= j",
        ]  # fmt: skip
        with tempfile.NamedTemporaryFile("w", suffix=".py") as file:
            file.write("\n".join([*lines, *(f"reveal_type({call})" for call, _ in REVEALED), ""]))
            file.flush()
            ran = subprocess.run(
                [sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent", "--config-file=", file.name], capture_output=True, text=True,
                env=dict(os.environ, MYPYPATH=f"{ROOT}/python"), cwd=ROOT,
            )  # fmt: skip
        said = [line.split('"')[1] for line in ran.stdout.splitlines() if "Revealed type" in line]
        self.assertEqual(len(said), len(REVEALED), ran.stdout + ran.stderr)
        self.assertNotIn("error:", ran.stdout)
        for (call, want), got in zip(REVEALED, said):
            plain = re.sub(r"(?:\w+\.)+", "", got).replace("Union[Tensor, Any]", "Tensor | Any")  # without modules
            with self.subTest(call):
                self.assertEqual("ndarray" if plain.startswith("ndarray[") else plain, want)


if __name__ == "__main__":
    unittest.main()
