"""docs_test.py: runs the Python of documents, and the cells of the notebook, on the CPU. Exits with 77 where torch is not
installed. With names of documents, as docs/serving.md, runs these alone, on a GPU where there is one."""

import ast
import importlib.util
import json
import os
import re
import sys
import textwrap
import unittest
from importlib.util import find_spec

from with_torch import ROOT, torch  # exits without torch, so first

import luattn


def read(name):
    with open(f"{ROOT}/{name}", encoding="utf-8") as file:
        return file.read()


def run_cell(source, names):
    """Runs it, and returns the value of its last line, which a notebook shows."""
    tree = ast.parse(source)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, "cell", "exec"), names)
    return eval(compile(ast.Expression(last.value), "cell", "eval"), names) if last else None


def blocks_of(name):
    """The line and the text of each block of Python, but those that load a model's weights; none of JAX where that is not installed."""
    text = "" if name == "docs/jax.md" and not find_spec("jax") else read(name)
    for match in re.finditer(r"^( *)```python\n(.*?)^ *```", text, re.S | re.M):
        if "from_pretrained" not in match[2]:
            yield text[: match.start()].count("\n") + 1, textwrap.dedent(match[2])


def run_block(name, line, block, names):
    exec(compile("\n" * line + block, name, "exec"), names)


class Documents(unittest.TestCase):
    def setUp(self):
        torch.manual_seed(1)

    def test_readme(self):
        """Its Python runs, and its spec in Lua computes what its mod does."""
        readme, names = read("README.md"), {}
        for block in re.findall(r"```python\n(.*?)```", readme, re.S):
            if "transformers" not in block:
                exec(block, names)
        q, k, v, bias, o = (names[name] for name in ("q", "k", "v", "bias", "o"))
        self.assertGreater(bias.grad.abs().max(), 0)
        lua = luattn.attention(re.search(r"```lua\n(.*?)```", readme, re.S)[1])
        torch.testing.assert_close(lua(q, k, v, bias=bias), o)

    def test_python(self):
        """All blocks of the documents of the package, one after another, but that of a model's weights. Each has what it reads."""
        self.addCleanup(os.chdir, os.getcwd())
        os.chdir(ROOT)  # from where documents name files
        ran = 0
        for name in sorted(os.listdir(f"{ROOT}/docs")):
            names = {}
            for line, block in blocks_of(f"docs/{name}") if name.endswith(".md") else ():
                with self.subTest(name, line=line):
                    run_block(name, line, block.replace('device="cuda"', 'device="cpu"'), names)
                    ran += 1
        self.assertGreater(ran, 12)

    def test_notebook(self):
        notebook = json.loads(read("examples/python/tour.ipynb"))
        self.assertEqual((notebook["nbformat"], notebook["nbformat_minor"]), (4, 5))
        self.assertEqual(len({cell["id"] for cell in notebook["cells"]}), len(notebook["cells"]))
        names, shown, kinds = {}, {}, set()
        for count, cell in enumerate([cell for cell in notebook["cells"] if cell["cell_type"] == "code"], 1):
            with self.subTest(cell["id"]):
                # Stored as a run from the first cell to the last has left them; an error would be another type of output.
                self.assertEqual(cell["execution_count"], count)
                self.assertIn([x["output_type"] for x in cell["outputs"]], (["execute_result"], ["stream"]))
                kinds.update(*(x.get("data", {}) for x in cell["outputs"]))
                if "plot_weights" in "".join(cell["source"]) and importlib.util.find_spec("matplotlib") is None:
                    continue
                shown[cell["id"]] = run_cell("".join(cell["source"]), names)
                stored = ["".join(x["data"]["image/svg+xml"]) for x in cell["outputs"] if "image/svg+xml" in x.get("data", {})]
                again = [shown[cell["id"]]._repr_svg_()] if hasattr(shown[cell["id"]], "_repr_svg_") else []
                self.assertEqual(stored, again, "another picture than stored: jupyter execute --inplace examples/python/tour.ipynb")
        self.assertLessEqual({"image/svg+xml", "text/html", "image/png", "text/plain"}, kinds)
        self.assertNotEqual(shown["gradients"][1], 0)


if __name__ == "__main__":
    if not sys.argv[1:] or not sys.argv[1].endswith(".md"):
        unittest.main()
    for document in sys.argv[1:]:
        found = {}
        for at, source in blocks_of(document):
            run_block(document, at, source, found)
        print(f"{document}: ran on {found.get('device', 'cpu')}")
