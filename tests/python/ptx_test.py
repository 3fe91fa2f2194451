"""ptx_test.py: torch -> engine -> NVRTC -> kernels, both passes, on the PTX machine (tests/ptx/run.sh), which takes memory of its
own for a GPU's: tensors lie there, and say that they are on GPU 0. Exits with 77 without torch or NVRTC."""

import ctypes
import os
import sys
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, f"{ROOT}/python")
try:
    import torch
except ImportError:
    print("torch is not installed: skipped")
    sys.exit(77)
if not os.environ.get("LUATTN_PTX_NVRTC"):
    try:
        from cuda.pathfinder import load_nvidia_dynamic_lib

        os.environ["LUATTN_PTX_NVRTC"] = load_nvidia_dynamic_lib("nvrtc").abs_path
    except Exception as e:
        print(f"no NVRTC ({e}): skipped")
        sys.exit(77)
import luattn  # noqa: E402
from luattn import _capi as capi  # noqa: E402
from luattn import _tensors  # noqa: E402
from luattn.engine import engine_of  # noqa: E402

driver = ctypes.CDLL(os.environ["LUATTN_LIBCUDA"])
allocated = []


def on_device(tensor):
    """A copy in the machine's memory, with the same strides."""
    size = (
        sum((n - 1) * stride for n, stride in zip(tensor.shape, tensor.stride())) + 1
    ) * tensor.element_size()
    address = ctypes.c_ulonglong()
    assert driver.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(size)) == 0
    allocated.append(address.value)
    memory = (ctypes.c_char * size).from_address(address.value)
    flat = torch.frombuffer(memory, dtype=tensor.dtype)
    flat.zero_()
    result = flat.as_strided(tensor.shape, tensor.stride())
    result.copy_(tensor.detach())
    return result


def fill(tensor, at, host_fill=_tensors.fill):
    host_fill(tensor, at)
    capi.DLTensor.from_address(at).device = capi.DLDevice(2, 0)


def run(frame, q, given):
    engine = engine_of(0, frame.backward and torch.are_deterministic_algorithms_enabled())
    size = frame.workspace_size(engine)
    workspace = on_device(torch.empty(size + 256, dtype=torch.uint8))
    frame.set_workspace((workspace.data_ptr() + 255) // 256 * 256, size)
    frame.run(engine, None)


def results(*args, make=_tensors.results):
    return tuple(None if t is None else on_device(t) for t in make(*args))


def gradients(*args, make=_tensors.gradients):
    *first, inputs = make(*args)
    return (
        *(None if t is None else on_device(t) for t in first),
        [None if t is None else on_device(t) for t in inputs],
    )


class Machine(unittest.TestCase):
    def test_both_passes(self):
        torch.manual_seed(1)
        for name, dtype, given in (
            ("t5_relative_bias", torch.bfloat16, {"bias": torch.randn(2, 32)}),
            ("gemma2", torch.float32, {"cap": 5.0}),
            ("attention_sink", torch.float16, {"sinks": torch.randn(2)}),
        ):
            with self.subTest(name):
                attention = luattn.attention(f"{ROOT}/examples/{name}.lua")
                q, k, v, dout = (
                    torch.randn(1, n, h, 64).to(dtype).transpose(1, 2)
                    for n, h in ((70, 2), (90, 1), (90, 1), (70, 2))
                )
                inputs = {n: t for n, t in given.items() if isinstance(t, torch.Tensor)}
                want = self.compute(attention, (q, k, v, *inputs.values()), dout, given, inputs)
                host = _tensors.fill, _tensors.run, _tensors.results, _tensors.gradients
                _tensors.fill, _tensors.run, _tensors.results, _tensors.gradients = fill, run, results, gradients
                try:
                    tensors = [on_device(t) for t in (q, k, v, *inputs.values())]
                    found = self.compute(attention, tensors, on_device(dout), given, inputs)
                finally:
                    _tensors.fill, _tensors.run, _tensors.results, _tensors.gradients = host
                for a, b in zip(found, want):
                    self.assertEqual((a.dtype, a.shape), (b.dtype, b.shape))
                    error = (a.double() - b.double()).norm() / b.double().norm()
                    self.assertLess(error, 1e-5 if dtype == torch.float32 else 1e-2)

    def test_prepare(self):
        gemma2 = luattn.attention(f"{ROOT}/examples/gemma2.lua")
        with self.assertLogs("luattn", "INFO") as logs:
            gemma2.prepare(torch.float32, 48)
        self.assertEqual(len(logs.output), len({line.split(":")[3] for line in logs.output}))
        for line in logs.output:
            self.assertRegex(line, r"gemma2: (forward|backward), f32, head dim 48, .*: (compiled|from the cache) in \d+ ms")
        with self.assertNoLogs("luattn", "INFO"):
            gemma2.prepare(torch.float32, 48)
        with self.assertRaisesRegex(luattn.InvalidError, "prepare: dtype: is int32, expected one of float64"):
            gemma2.prepare("int32", 64)
        with self.assertRaisesRegex(luattn.Error, "head_dim"):
            gemma2.prepare("bfloat16", 20)

    def compute(self, attention, tensors, dout, given, inputs):
        tensors = [t.detach().requires_grad_() for t in tensors]
        o, lse = attention(*tensors[:3], return_lse=True, **{**given, **dict(zip(inputs, tensors[3:]))})
        return o, lse, *torch.autograd.grad(o, tensors, dout)


if __name__ == "__main__":
    unittest.main()
