"""hf_kernel_test.py: the repository that packaging/hf_kernel.py writes, loaded by `kernels` in a process that has no luattn: flash-attn's functions
beside PyTorch's attention and the package's own call, and transformers' generate and generate_batch beside "eager". On the CPU. Exits
with 77 without torch or kernels."""

import importlib.util
import os
import platform
import subprocess
import sys
import tempfile
import unittest

from with_torch import ROOT, torch  # noqa: F401  # exits without torch, so first

if importlib.util.find_spec("kernels") is None:
    print("kernels is not installed: skipped")
    sys.exit(77)
import luattn  # noqa: E402
from luattn._library import _path  # noqa: E402

sys.path.insert(0, f"{ROOT}/packaging")
import hf_kernel  # noqa: E402

LOADS = """
import pathlib, sys, torch
from kernels import get_local_kernel
place = pathlib.Path(sys.argv[1])
kernel = get_local_kernel(place, backend="cpu")
"""

CALLS = """
assert sys.modules["luattn"].__file__.startswith(kernel.__file__.removesuffix("__init__.py"))
torch.manual_seed(1)
q, k, v = (torch.randn(2, 40, heads, 32, requires_grad=True) for heads in (4, 2, 2))
causal = kernel.attention("causal_bottom_right")
want = torch.nn.functional.scaled_dot_product_attention(*(t.double().transpose(1, 2) for t in (q, k, v)), is_causal=True, enable_gqa=True)
o = kernel.flash_attn_func(q, k, v, causal=True)
torch.testing.assert_close(o, want.transpose(1, 2).float(), atol=1e-6, rtol=0)
assert torch.equal(o, causal(q, k, v, layout="bshd"))
cu = torch.tensor([0, 40, 80], dtype=torch.int32)
packed = kernel.flash_attn_varlen_func(*(t.flatten(0, 1) for t in (q, k, v)), cu, cu, 40, 40, causal=True)
torch.testing.assert_close(packed.view_as(o), o)
o.sum().backward()
assert q.grad.abs().max() > 0
"""

GENERATES = """
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM
from transformers.integrations import hub_kernels
# What transformers does with `kernels`, whatever its version: it asks for a kernel by the name of its repository.
hub_kernels.is_kernels_available = lambda *given: True
hub_kernels.get_kernel = lambda name, **given: kernel
torch.manual_seed(0)
sizes = dict(hidden_size=64, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2)
model = LlamaForCausalLM(LlamaConfig(vocab_size=128, **sizes)).eval()
prompts, settings = [[1, 5, 9, 3], [7, 7, 2, 8, 4, 11, 90], [3]], dict(max_new_tokens=8, do_sample=False, eos_token_id=127, pad_token_id=0)
model.set_attn_implementation("eager")
ones = lambda p: torch.ones(1, len(p), dtype=torch.long)
wants = [model.generate(torch.tensor([p]), attention_mask=ones(p), **settings)[0, len(p) :].tolist() for p in prompts]
model.set_attn_implementation("someone/luattn-flash-attn2", allow_all_kernels=True)
assert wants == [model.generate(torch.tensor([p]), attention_mask=ones(p), **settings)[0, len(p) :].tolist() for p in prompts]
found = model.generate_batch(prompts, generation_config=GenerationConfig(**settings))
assert model.config._attn_implementation == "someone/luattn-flash-attn2"
assert wants == [x.generated_tokens for x in found.values()], (wants, found)
"""


class Kernel(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.folder.cleanup)
        files = {}
        for folder, names, found in os.walk(f"{ROOT}/python/luattn"):
            names[:] = [name for name in names if name != "__pycache__"]
            for name in found:
                path = os.path.join(folder, name)
                with open(path, "rb") as file:
                    files[os.path.relpath(path, f"{ROOT}/python")] = file.read()
        for name in os.listdir(f"{ROOT}/examples"):
            if name.endswith(".lua"):
                with open(f"{ROOT}/examples/{name}", "rb") as file:
                    files[f"luattn/examples/{name}"] = file.read()
        with open(_path(), "rb") as file:
            files["luattn/libluattn.so"] = file.read()
        hf_kernel.write(cls.folder.name, platform.machine(), files, luattn.__version__)

    def run_alone(self, code, **more):
        env = {name: x for name, x in os.environ.items() if name not in ("PYTHONPATH", "LUATTN_LIBRARY")} | more
        return subprocess.run([sys.executable, "-c", LOADS + code, self.folder.name], env=env, capture_output=True, text=True)

    def test_calls(self):
        run = self.run_alone(CALLS + (GENERATES if importlib.util.find_spec("transformers") else ""))
        self.assertEqual(run.returncode, 0, run.stderr)

    def test_another_luattn(self):
        """One luattn in a process: another version is refused, by both versions."""
        with tempfile.TemporaryDirectory() as folder:
            os.mkdir(f"{folder}/luattn")
            with open(f"{folder}/luattn/__init__.py", "w") as file:
                file.write("__version__ = '9.9'")
            run = self.run_alone("", PYTHONPATH=folder)
        self.assertIn("luattn 9.9 is installed, and this kernel is of " + luattn.__version__, run.stderr)

    def test_names(self):
        """One folder for each backend, as `kernels` parses it; other files than wheels of a release are refused."""
        from kernels.variants import get_variants_local

        found = get_variants_local(hf_kernel.pathlib.Path(self.folder.name) / "build")
        self.assertEqual(len(found), len(hf_kernel.BACKENDS))
        script = [sys.executable, f"{ROOT}/packaging/hf_kernel.py"]
        run = subprocess.run([*script, f"{self.folder.name}/other", "luattn-0.1.0-py3-none-linux_x86_64.whl"], capture_output=True, text=True)
        self.assertIn("expected luattn-VERSION-py3-none-manylinux_2_17_MACHINE.whl", run.stderr)
        run = subprocess.run([*script, self.folder.name, "x.whl"], capture_output=True, text=True)
        self.assertIn("exists; name a new folder", run.stderr)


if __name__ == "__main__":
    unittest.main()
