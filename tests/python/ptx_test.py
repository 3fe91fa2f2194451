"""ptx_test.py: torch -> engine -> NVRTC -> kernels, both passes, on the PTX machine (tests/ptx/run.sh), which takes memory of its
own for a GPU's: tensors lie there, and say that they are on GPU 0. Exits with 77 without torch or NVRTC."""

import ctypes
import logging
import os
import sys
import tempfile
import unittest
from unittest import mock

from with_torch import ROOT, torch  # exits without torch, so first

if not os.environ.get("LUATTN_PTX_NVRTC"):
    try:
        from cuda.pathfinder import load_nvidia_dynamic_lib

        os.environ["LUATTN_PTX_NVRTC"] = load_nvidia_dynamic_lib("nvrtc").abs_path
    except Exception as e:
        print(f"no NVRTC ({e}): skipped")
        sys.exit(77)
import luattn  # noqa: E402
from luattn import _capi as capi  # noqa: E402
from luattn import _signature, _spec, _tensors, _tune, flex, natten  # noqa: E402
from luattn._call import give_back, take_frame  # noqa: E402
from luattn.batch import Bits  # noqa: E402
from luattn.engine import engine_of  # noqa: E402
from luattn.flex import _bits, _block_mask, _programs  # noqa: E402

driver = ctypes.CDLL(os.environ["LUATTN_LIBCUDA"])
allocated, copies = [], []
_tensors.is_capturing = lambda: False  # torch would ask a CUDA that is not there
find, _signature.find = _signature.find, lambda *args: (None, None)  # calls on the CPU look the same


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
    if tensor.dtype != torch.int32 or tensor.data_ptr() in allocated:  # offsets and lengths may stay on the host
        capi.DLTensor.from_address(at).device = capi.DLDevice(2, 0)


def fill_copies(tensor, at):
    """Of what torch has computed on the way, too."""
    copies.append(tensor if tensor.data_ptr() in allocated else on_device(tensor))  # whose shapes calls read
    fill(copies[-1], at)


def memory(q, size):
    whole = on_device(torch.empty(size + 256, dtype=torch.uint8))
    first = -whole.data_ptr() % 256
    return whole[first : first + size]


def run(frame, q, given):
    engine = _tensors.engine_for(0, given)
    if frame.has_batch() and frame.batch_size():
        arrays = memory(q, frame.batch_size())
        frame.prepare_batch(engine, 0, arrays.data_ptr(), len(arrays), None)
    size = frame.workspace_size(engine)
    workspace = memory(q, size)
    frame.set_workspace(workspace.data_ptr(), size)
    frame.run(engine, None)
    if _tensors.is_capturing():
        frame.note_capture()


def run_backward_jvp(frame, q, given, *rest):
    frame.run_backward_jvp(_tensors.engine_for(0, given), None, lambda size: memory(q, size), *rest)


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

    def test_tangents(self):
        """By luattn.jvp and torch.func.jvp: of q alone, of all, of an input and a scalar."""
        torch.manual_seed(2)
        attention = luattn.attention("""return attention { name = "along", scalars = { cap = 3.0 }, inputs = { bias = { axes = {"h", "kv"}, dtype = "f32", grad = true } },
            score_mod = function(s, b, h, q, kv) return cap * tanh(s / cap) + bias[{h, kv}] end, block_mask = causal_bottom_right() }""")
        tensors = [torch.randn(1, n, h, 32).transpose(1, 2) for n, h in ((40, 2), (50, 1), (50, 1))]
        bias, *along = (torch.randn_like(t) for t in (torch.empty(2, 50), *tensors, torch.empty(2, 50)))

        def compute(q, k, v, bias, *along):
            every = luattn.jvp(attention, (q, k, v), {**dict(zip(("q", "k", "v", "bias"), along)), "cap": 0.5}, bias=bias, return_lse=True)
            one = torch.func.jvp(lambda q: attention(q, k, v, bias=bias), (q,), (along[0],))
            return (*every[0], *every[1], *one)

        want = compute(*(t.double() for t in tensors), bias, *(t.double() for t in along[:3]), along[3])
        with mock.patch.multiple(_tensors, fill=fill, run=run, results=results):
            found = compute(*map(on_device, (*tensors, bias, *along)))
        for a, b in zip(found, want):
            self.assertLess((a.double() - b).norm() / b.norm(), 1e-5)

    def test_second_derivatives(self):
        """Gradients of gradients, gradients through tangents, and tangents of gradients, of q, k, v, an input and a scalar."""
        torch.manual_seed(3)
        attention = luattn.attention("""return attention { name = "twice", scalars = { cap = 3.0 }, inputs = { bias = { axes = {"h", "kv"}, dtype = "f32", grad = true } },
            score_mod = function(s, b, h, q, kv) return cap * tanh(s / cap) + bias[{h, kv}] end, block_mask = causal_bottom_right() }""")
        tensors = [torch.randn(1, n, h, 16).transpose(1, 2) for n, h in ((20, 2), (30, 1), (30, 1))]
        dout, bias, *along = (torch.randn_like(t) for t in (tensors[0], torch.empty(2, 30), *tensors, torch.empty(2, 30)))
        cap = torch.tensor(3.0, dtype=torch.float64)

        def compute(dout, q, k, v, bias, *along):
            leaves = [t.detach().requires_grad_() for t in (q, k, v, bias, cap)]

            def call(q, k, v, bias, cap):
                return attention(q, k, v, bias=bias, cap=cap)

            first = torch.autograd.grad(call(*leaves), leaves, dout, create_graph=True)
            twice = torch.autograd.grad(sum((d * t).sum() for d, t in zip(first, along)), leaves)
            o, o_tangent = luattn.jvp(attention, leaves[:3], {**dict(zip(("q", "k", "v", "bias"), along)), "cap": 0.5}, bias=leaves[3], cap=leaves[4])
            through = torch.autograd.grad((o.square() * o_tangent).sum(), leaves)
            ahead = torch.func.jvp(torch.func.grad(lambda *x: (call(*x, bias, cap) * dout).sum(), argnums=(0, 1, 2)), (q, k, v), tuple(along[:3]))
            return (*twice, *through, *ahead[0], *ahead[1])

        want = compute(*(t.double() for t in (dout, *tensors)), bias, *(t.double() for t in along[:3]), along[3])
        with mock.patch.multiple(_tensors, fill=fill_copies, run=run, run_backward_jvp=run_backward_jvp, results=results, gradients=gradients):
            found = compute(*map(on_device, (dout, *tensors, bias, *along)))
        for a, b in zip(found, want, strict=True):
            self.assertLess((a.double() - b).norm() / b.norm(), 1e-5)

    def test_prepare_of_inputs_without_a_type(self):
        """Calls whose inputs come in float32, or as q, find kernels that prepare made, of both passes; input_dtype says it alone."""
        text = """return attention {{ name = '{}', inputs = {{ bias = {{ axes = {{'h'}}, grad = true }}, one = {{ axes = {{}}, dtype = 'any' }} }},
            score_mod = function(s, b, h) return s + bias[h] * one end }}"""
        q, k, v, dout = (on_device(torch.randn(1, 1, n, 16).to(torch.bfloat16)) for n in (5, 7, 7, 5))
        for name, said, types in (("all", None, (torch.float32, torch.bfloat16)), ("named", {"bias": "float16"}, (torch.float16,)), ("one", torch.float32, (torch.float32,))):
            attention = luattn.attention(text.format(name))
            luattn.prepare([attention], torch.bfloat16, 16, input_dtype=said)
            for x in types:
                bias, one = on_device(torch.ones(1, dtype=x)), on_device(torch.ones((), dtype=torch.float32 if name == "named" else x))
                with mock.patch.multiple(_tensors, fill=fill, run=run, results=results, gradients=gradients), self.assertNoLogs("luattn", logging.INFO):
                    self.compute(attention, (q, k, v, bias), dout, {"one": one, "decode": "never"}, {"bias": bias})
        with self.assertRaisesRegex(luattn.InvalidError, r"prepare: input_dtype\['bias'\]: is int32, expected one of float64, float32, bfloat16, float16"):
            luattn.prepare([attention], torch.bfloat16, 16, input_dtype={"bias": torch.int32})

    def test_calls_of_one_signature(self):
        """Launched from kept frames: both passes with an input, and lists of blocks of a luattn.Batch."""
        attention = luattn.attention(f"{ROOT}/examples/attention_sink.lua")
        there = {"fill": fill, "run": run, "results": results, "gradients": gradients, "gpu_of": lambda t: 0, "stream_of": lambda gpu: 0,
                 "new_where": lambda q: lambda shape, strides, dtype: on_device(torch.empty_strided(shape, strides, dtype=dtype))}  # fmt: skip
        ran, real = [], _signature.Signature.run

        def noted(*args):
            ran.append(real(*args))
            return ran[-1]

        def compute(*tensors):
            *wants, dout = tensors
            o = attention(*[t.requires_grad_() for t in wants[:3]], sinks=wants[3].requires_grad_(), layout="bshd")
            return o, *torch.autograd.grad(o, wants, dout)

        for seed in range(3):
            torch.manual_seed(seed)
            given = [torch.randn(1, n, h, 64).to(torch.bfloat16) for n, h in ((40, 2), (50, 1), (50, 1))]
            given += torch.randn(2), torch.randn(1, 40, 2, 64).to(torch.bfloat16)
            with (
                mock.patch.multiple(_tensors, **there), mock.patch.object(_signature, "find", find),
                mock.patch.object(_signature.Signature, "run", noted),
            ):  # fmt: skip
                found = compute(*map(on_device, given))
            for a, b in zip(found, compute(*given)):
                self.assertEqual((a.dtype, a.shape, a.stride()), (b.dtype, b.shape, b.stride()))
                self.assertLess((a.double() - b.double()).norm() / b.double().norm(), 1e-2)
        self.assertEqual([made is not None for made in ran], [True] * 4)

    def test_row_pass_of_a_part(self):
        """A row pass sums over the keys of its call, so that some keys of a whole have none."""
        attention = luattn.attention("""return attention { online_func = { online_rowscales = { l = 0 }, final_rowscales = { "lse" },
            online_fwd = function(s, r) local p = sigmoid(s) return p, { l = r.l + reduce_sum(p) }, 1 end,
            online_fwd_epilogue = function(o, r) return o * sin(r.l) / (1 + r.l), { lse = log(r.l) } end } }""")
        tensors, dout = [torch.randn(1, 1, n, 16) for n in (5, 7, 7)], torch.randn(1, 1, 5, 16)
        want = self.compute(attention, tensors, dout, {}, {})
        host = _tensors.fill, _tensors.run, _tensors.results, _tensors.gradients
        _tensors.fill, _tensors.run, _tensors.results, _tensors.gradients = fill, run, results, gradients
        try:
            on_gpu = [on_device(t) for t in tensors]
            found = self.compute(attention, on_gpu, on_device(dout), {"kv_len": 7}, {})
            with self.assertRaisesRegex(luattn.Error, "k is some keys of a whole, and this backward takes a row pass, which needs all keys of a row"):
                self.compute(attention, on_gpu, on_device(dout), {"kv_len": 9}, {})
        finally:
            _tensors.fill, _tensors.run, _tensors.results, _tensors.gradients = host
        for a, b in zip(found, want):
            self.assertLess((a.double() - b.double()).norm() / b.double().norm(), 1e-5)

    def test_largest_of_integers(self):
        """Scores of integers are equal in all bits, whoever computes them: the largest share the derivative of their maximum, as in torch."""
        torch.manual_seed(4)
        attention = luattn.attention("""return attention { name = "eps", block_mask = causal_bottom_right(), online_func = { online_rowscales = { m = -1e37, l = 0 }, final_rowscales = { "lse" },
            online_fwd = function(s, r) local m = max(r.m, reduce_max(s)) local f, p = exp(r.m - m), exp(s - m)
              return p, { m = m, l = r.l * f + reduce_sum(p) }, f end,
            online_fwd_epilogue = function(o, r) return o / (r.l + 2), { lse = log(r.l) + r.m } end } }""")
        q, k = (torch.randint(-1, 2, (1, h, n, 16)).double() for h, n in ((2, 40), (1, 100)))
        k[:, :, 50:] = k[:, :, :50]
        v, dout = torch.randn(1, 1, 100, 16).bfloat16().double(), torch.randn(1, 2, 40, 16).bfloat16().double()
        leaves = [t.clone().requires_grad_() for t in (q, k, v)]
        keep = torch.ones(40, 100, dtype=torch.bool).tril(60)
        s = (0.5 * leaves[0] @ leaves[1].mT).where(keep, -torch.inf)
        e = (s - s.amax(-1, keepdim=True)).exp()
        exact = torch.autograd.grad(e / (e.sum(-1, keepdim=True) + 2) @ leaves[2], leaves, dout)
        self.assertGreater(((s == s.amax(-1, keepdim=True)).sum(-1) > 1).double().mean(), 0.5)
        for dtype, family, bound in ((torch.float64, None, 1e-12), (torch.float32, "simt", 1e-5), (torch.float16, "sm80", 2e-2), (torch.bfloat16, "sm90", 2e-2)):
            with self.subTest(family, dtype=dtype):
                found = self.on_family(family, attention, [t.to(dtype) for t in (q, k, v)], dout.to(dtype), {"scale": 0.5})
                for a, b in zip(found[-3:], exact):
                    self.assertLess((a.double() - b).norm() / b.norm(), bound)

    def on_family(self, family, attention, tensors, dout, given):
        """Both passes in kernels of a family; None: on the CPU."""
        if family is None:
            return self.compute(attention, tensors, dout, given, {})
        number = 1 + ("simt", "sm80", "sm90").index(family)
        with mock.patch.multiple(_tensors, fill=fill, run=run, results=results, gradients=gradients, engine_for=lambda index, _: engine_of(index, False, number)):
            return self.compute(attention, [on_device(t) for t in tensors], on_device(dout), given, {})

    def test_benchmarks(self):
        """bench/builds.py: calls of the package, loaded once more under another name for its library."""
        sys.path.insert(0, f"{ROOT}/bench")
        import builds

        def bind(build, text, inputs, rows=(1, 2, 70), **more):
            build.package("_tensors").fill, build.package("_tensors").memory = fill, memory
            build.package("_tensors").place = lambda q: (0, None)
            q, k, v, dout = (on_device(t) for t in tensors)
            o, lse = on_device(torch.empty(q.shape).bfloat16()), on_device(torch.empty(rows))
            grads = {f"d{name}": on_device(torch.empty(t.shape).bfloat16()) for name, t in zip("qkv", (q, k, v))}
            given = dict(q=q, k=k, v=v, o=o, lse=lse, inputs=inputs, **more)
            spec = build.spec("spec.lua", text)
            passes = build.bind(spec, **given), build.bind(spec, backward=True, dout=dout, **given, **grads)
            for run in (*passes, *passes):  # bound once, launched as often as one likes
                run()
            return [o, *grads.values()], passes[1].plan()

        torch.manual_seed(3)
        tensors = [torch.randn(1, h, n, 64).bfloat16() for n, h in ((70, 2), (90, 1), (90, 1), (70, 2))]
        text = "return attention { name = 'flags', inputs = { on = { axes = {'kv'}, dtype = 'bool' } }, " + (
            "block_mask = function(b, h, q_idx, kv_idx) return on[kv_idx] end }"
        )
        on = torch.rand(90) < 0.8
        q, k, v = (t.requires_grad_() for t in tensors[:3])
        o = luattn.attention(text)(q, k, v, on=on)
        want = [o.detach(), *torch.autograd.grad(o, (q, k, v), tensors[3])]
        library = os.environ["LUATTN_LIBRARY"]
        for options in ({}, {"family": "sm80"}, {"offsets": "arrays"}, {"offsets": "numbers"}, {"bits": True}):
            with self.subTest(**options):
                build = builds.Luattn(library, **options)
                found, plan = bind(build, text, {"on": (on_device(on), None)})
                self.assertIn("family " + options.get("family", "sm90"), plan)
                for a, b in zip(found, want):
                    self.assertLess((a.double() - b.double()).norm() / b.double().norm(), 1e-2)
        with self.subTest("packed, with a table of tiles"):
            build, cu = builds.Luattn(library), on_device(torch.tensor([0, 30, 30, 200, 310], dtype=torch.int32))
            tensors = [torch.randn(310, 2, 64).bfloat16() for _ in range(4)]
            batch = dict(cu_seqlens_q=cu, cu_seqlens_k=cu, max_seqlen_q=170, max_seqlen_k=170)
            text = "return attention { name = 'packed', block_mask = causal_bottom_right() }"
            found, _ = bind(build, text, {}, batch=batch, rows=(2, 310))
            q, k, v = (t.requires_grad_() for t in tensors[:3])
            o = luattn.attention(text)(q, k, v, cu_seqlens_q=cu.clone(), cu_seqlens_k=cu.clone())
            for a, b in zip(found, [o.detach(), *torch.autograd.grad(o, (q, k, v), tensors[3])]):
                self.assertLess((a.double() - b.double()).norm() / b.double().norm(), 1e-2)
        self.assertIs(builds.Luattn(library).package("_library").lib, build.package("_library").lib)
        self.assertIsNot(build.package("_library"), sys.modules["luattn._library"])
        with self.assertRaises(ImportError):
            builds.Luattn("/nowhere/libluattn.so")

    def test_tune(self):
        causal = luattn.attention(f"{ROOT}/examples/causal.lua")
        q, k, v = (on_device(torch.randn(1, 2, n, 64).bfloat16()) for n in (70, 90, 90))
        ran_kernels = []

        def plan():
            frame = take_frame(causal._spec)
            frame.set(fill, (q, k, v, None, None, None))
            try:
                return frame.plan(engine_of(0))
            finally:
                give_back(frame)

        def time(self, timer, kernel, count):
            return slow if kernel is vars(self).setdefault("first", kernel) else 2.0

        with (
            tempfile.TemporaryDirectory() as folder,
            mock.patch.dict(os.environ, LUATTN_CACHE_DIR=folder),
            mock.patch.multiple(
                _tensors, fill=fill, run=run, results=results, gradients=gradients, memory=memory
            ),
            mock.patch.multiple(_tune, device_of=lambda q: 0, _MOST=3),
            mock.patch.object(_tune._Pass, "time", time),
        ):
            for slow, forward, backward in (
                (3.0, "^forward: .* are 1.500 times as fast as the plan's .*; remembered in ", "\nbackward: .* 1.500 times"),
                (2.01, "^forward: nothing is 1% faster than the plan's .*; nothing is remembered$", ""),
            ):
                found = causal.tune(q, k, v, backward=bool(backward))
                self.assertRegex(found, forward)
                self.assertRegex(found, backward or "nothing")
                self.assertEqual("tuned: " in plan(), slow == 3.0)

            # Of few queries the kernel that such a call uses.
            slow, few = 3.0, [on_device(torch.randn(1, 2, n, 64).bfloat16()) for n in (1, 1024, 1024)]
            self.assertRegex(causal.tune(*few), "^forward: .* are 1.500 times as fast as the plan's 16 x ")
            frame = take_frame(causal._spec, False)
            frame.set(fill, (*few, None, None, None))
            self.assertRegex(frame.plan(engine_of(0)), "(?s)^decode: .*tuned: ")
            give_back(frame)

            def another(self, kernel):
                ran_kernels.append(kernel)
                return [torch.full((2, 2), float(len(ran_kernels)))]

            with mock.patch.object(_tune._Pass, "run", another):
                with self.assertRaisesRegex(luattn.Error, "tune: causal: .* give other results than .*; nothing is remem"):
                    causal.tune(q, k, v)
        with self.assertRaisesRegex(luattn.InvalidError, "tune: q: is on cpu, and tiles are measured on a GPU"):
            causal.tune(q, k, v)

    def test_tune_over_a_grid(self):
        """Pairs of boxes, which calls of these extents take from then on."""
        q, k, v = (on_device(torch.randn(1, 12, 20, 2, 16).bfloat16()) for _ in range(3))

        def choice(backward, *tensors):
            q, k, v = (t.movedim(-2, 1) for t in tensors)
            spec = natten._spec(natten.Window((5, 7), (1, 1), (1, 1), (False, False)), False)
            frame = take_frame(spec, backward)
            frame.set(fill, (q, k, v, *[None] * 5, q, k, v) if backward else (q, k, v, None, None, None))
            try:
                return frame.choice(engine_of(0))
            finally:
                give_back(frame)

        def time(self, timer, kernel, count):
            return 3.0 if kernel is vars(self).setdefault("first", kernel) else 2.0

        with (
            tempfile.TemporaryDirectory() as folder,
            mock.patch.dict(os.environ, LUATTN_CACHE_DIR=folder),
            mock.patch.multiple(_tensors, fill=fill, run=run, results=results, gradients=gradients, memory=memory),
            mock.patch.multiple(_tune, device_of=lambda q: 0, _MOST=2),
            mock.patch.object(_tune._Pass, "time", time),
        ):
            before = choice(False, q, k, v)
            self.assertRegex(before, "^boxes: .* which of 3 pairs are predicted to take the least time\n$")
            found = natten.tune(q, k, v, (5, 7), backward=True)
            self.assertRegex(found, r"^forward: (\d+ x \d+ by \d+ x \d+) are 1.500 times as fast as the plan's \d+ x \d+ by \d+ x \d+; remembered in ")
            self.assertRegex(found, r"\nbackward: \d+ x \d+ by \d+ x \d+ are 1.500 times")
            for backward in (False, True):
                self.assertRegex(choice(backward, q, k, v), "^boxes: .* tuned: 1.50 times as fast as ")
            self.assertNotIn("tuned", choice(False, *(t[:, :11] for t in (q, k, v))))

    def test_list_of_blocks(self):
        causal, batch = luattn.attention(f"{ROOT}/examples/causal.lua"), luattn.Batch()
        q, k, v = (torch.randn(n).bfloat16() for n in ((3, 4, 1, 64), (40, 2, 32, 64), (40, 2, 32, 64)))
        given = {
            "seqused_k": torch.tensor([1100, 0, 33], dtype=torch.int32), "max_seqlen_k": 1120,
            "block_table": torch.randperm(40)[:35].int().expand(3, 35).contiguous(),
        }  # fmt: skip
        want = causal(q, k, v, **given)
        q, k, v = on_device(q), on_device(k), on_device(v)
        given = {name: on_device(x) if isinstance(x, torch.Tensor) else x for name, x in given.items()}
        with mock.patch.multiple(_tensors, fill=fill, run=run, results=results, memory=memory, place=lambda q: (0, 0)):
            plain = causal(q, k, v, **given)
            torch.testing.assert_close(causal(q, k, v, **given, batch=batch), plain, atol=0, rtol=0)  # nobody has prepared it
            _tensors.prepare_splits(batch, causal._spec, q, k, v, (), (), given)
            first = batch._splits[causal._spec]
            torch.testing.assert_close(causal(q, k, v, **given, batch=batch), want, atol=3e-2, rtol=2e-2)
            _tensors.prepare_splits(batch, causal._spec, q, k, v, (), (), given)
            self.assertEqual(batch._splits[causal._spec].memory.data_ptr(), first.memory.data_ptr())
            frame = take_frame(causal._spec, False)
            frame.set(fill, (q, k, v, None, None, None))
            frame.set_batch(fill, {**given, "batch": batch.token})
            with_list = frame.workspace_size(engine_of(0))
            frame.clear()
            frame.set_batch(fill, given)
            self.assertNotEqual(with_list, frame.workspace_size(engine_of(0)))
            few = "^choice: the kernel for few queries, as the faster one: predicted [0-9]+ us .* of 3 entries of up to 1120 keys"
            self.assertRegex(frame.choice(engine_of(0)), f"{few} .*blocks share the keys by their entries' lengths, unless the call is short, so a batch's list gains little\n$")
            frame.set_options(decode=2)
            self.assertIn("the kernel for all lengths, as decode forbids the other", frame.choice(engine_of(0)))
            give_back(frame)
            for decode in ("always", "never"):
                torch.testing.assert_close(causal(q, k, v, **given, decode=decode), want, atol=3e-2, rtol=2e-2)
            _tensors.prepare_splits(batch, causal._spec, q.transpose(2, 3).contiguous().transpose(2, 3), k, v, (), (), given)
            with self.assertRaisesRegex(luattn.InvalidError, "max_seqlen_k: prepare takes it beside seqused_k alone"):
                batch.prepare(causal, q, k, max_seqlen_k=5)
            for name, x, message in (
                ("seqused_k", on_device(given["seqused_k"]), r"batch: was prepared with \(3,\) at 0x[0-9a-f]+ as seqused_k, and the call has"),
                ("max_seqlen_k", 1110, "batch: was prepared with 1120 as max_seqlen_k, and the call has 1110: give both the same"),
                ("kv_len", 7, "batch: was prepared with none as whole"),
            ):
                with self.assertRaisesRegex(luattn.InvalidError, message):
                    causal(q, k, v, **{**given, name: x}, batch=batch)

    def test_lists_of_graphs(self):
        """What a captured graph uses stays, and only prepare for the same tensors writes to it; deterministic calls have a list of their own."""
        causal, batch = luattn.attention(f"{ROOT}/examples/causal.lua"), luattn.Batch()
        lists, used = batch._splits, [on_device(torch.full((n,), 1100, dtype=torch.int32)) for n in (2, 3, 2)]

        def prepare(i):
            q, k = (on_device(torch.randn(n).bfloat16()) for n in ((len(used[i]), 4, 1, 64), (len(used[i]), 2, 1120, 64)))
            _tensors.prepare_splits(batch, causal._spec, q, k, k, (), (), {"seqused_k": used[i]})
            return (q, k, k), lists[causal._spec]

        with mock.patch.multiple(_tensors, fill=fill, run=run, results=results, memory=memory, place=lambda q: (0, 0)):
            _, first = prepare(0)
            self.assertIs(prepare(2)[1].memory, first.memory)  # no graph uses it
            self.assertEqual(len(batch._captured), 0)
            tensors, first = prepare(0)
            with mock.patch.object(_tensors, "is_capturing", lambda: True):
                causal(*tensors, seqused_k=used[0], batch=batch)
            self.assertIs(prepare(0)[1].memory, first.memory)
            second = prepare(2)[1]
            self.assertNotEqual(second.memory.data_ptr(), first.memory.data_ptr())
            with mock.patch.object(_tensors, "is_capturing", lambda: True):
                third = prepare(1)[1]
            self.assertIsNot(third.memory, first.memory)
            self.assertIs(prepare(0)[1].memory, first.memory)
            self.assertIs(prepare(1)[1].memory, third.memory)
            before = prepare(2)[1]
            torch.use_deterministic_algorithms(True)
            try:
                tensors, apart = prepare(2)
                self.assertNotEqual(apart.key, before.key)
                causal(*tensors, seqused_k=used[2], batch=batch)
                frame = take_frame(causal._spec, False)
                frame.set(fill, (*tensors, None, None, None))
                frame.set_batch(fill, {"seqused_k": used[2]})
                self.assertIn("by its own length alone", frame.plan(_tensors.engine_for(0, None)))
                give_back(frame)
            finally:
                torch.use_deterministic_algorithms(False)

    def test_packed(self):
        gemma2 = luattn.attention(f"{ROOT}/examples/gemma2.lua")
        q, k, v = (torch.randn(n, h, 64).bfloat16() for n, h in ((50, 2), (70, 1), (70, 1)))
        cu = {f"cu_seqlens_{x}": torch.tensor(ends, dtype=torch.int32) for x, ends in (("q", [0, 20, 20, 50]), ("k", [0, 9, 40, 70]))}
        dout = torch.randn(50, 2, 64).bfloat16()
        want = self.compute(gemma2, (q, k, v), dout, cu, {})
        tensors, dout = [on_device(t) for t in (q, k, v)], on_device(dout)
        on_gpu = {name: on_device(t) for name, t in cu.items()}
        with mock.patch.multiple(_tensors, fill=fill, run=run, results=results, gradients=gradients):
            for given in (cu, {**on_gpu, "max_seqlen_q": 30, "max_seqlen_k": 31}):
                for a, b in zip(self.compute(gemma2, tensors, dout, given, {}), want):
                    torch.testing.assert_close(a, b, atol=3e-2, rtol=2e-2)

    def test_rows_of_no_sequence(self):
        """Tokens are padded to a fixed number: rows behind the last sequence get 0, and what they hold reaches nothing."""
        causal = luattn.attention(f"{ROOT}/examples/causal.lua")
        q, k, v, dout = (torch.randn(50, h, 64).bfloat16() for h in (2, 1, 1, 2))
        cu = torch.tensor([0, 20, 20, 37], dtype=torch.int32)
        given = {"cu_seqlens_q": cu, "cu_seqlens_k": cu}
        want = self.compute(causal, [t[:37] for t in (q, k, v)], dout[:37], given, {})
        for t in (q, k, v, dout):
            t[37:] = torch.nan

        def poisoned(*args, make):
            return tuple(None if t is None else on_device(torch.full_like(t, torch.nan)) for t in make(*args))

        def poisoned_gradients(*args, make=_tensors.gradients):
            *first, inputs = make(*args)
            return (*poisoned(make=lambda: first), inputs)

        host_results = _tensors.results
        there = {"fill": fill, "run": run, "gradients": poisoned_gradients, "results": lambda *a: poisoned(*a, make=host_results)}
        on_gpu = {name: on_device(cu) for name in given} | {"max_seqlen_q": 20, "max_seqlen_k": 20}
        for padded in (self.compute(causal, (q, k, v), dout, given, {}), None):
            if padded is None:
                with mock.patch.multiple(_tensors, **there):
                    padded = self.compute(causal, [on_device(t) for t in (q, k, v)], on_device(dout), on_gpu, {})
            self.assertTrue((padded[1][:, 37:] == -torch.inf).all())
            for a, b in zip((padded[1].T, *padded), (want[1].T, *want)):
                if a.shape[0] == 50:
                    torch.testing.assert_close(a[:37], b, atol=3e-2, rtol=2e-2)
                    self.assertTrue((a[37:] == (-torch.inf if a.shape == (50, 2) else 0)).all())

    def test_dropout(self):
        """The same weights are dropped as on the CPU, of a seed on the host or on the device."""
        dropped = luattn.attention("return attention { online_func = dropout(0.25) }")
        q, k, v, dout = (torch.randn(1, 2, n, 64).bfloat16() for n in (70, 90, 90, 70))
        seed = torch.tensor([12345678901234, 6])
        want = self.compute(dropped, (q, k, v), dout, {"seed": seed}, {})
        tensors, dout, there = [on_device(t) for t in (q, k, v)], on_device(dout), on_device(seed)
        is_there = lambda t: t is there  # noqa: E731
        with mock.patch.multiple(_tensors, fill=fill, run=run, results=results, gradients=gradients, on_device=is_there):
            for given in (seed, there):
                for a, b in zip(self.compute(dropped, tensors, dout, {"seed": given}, {}), want):
                    torch.testing.assert_close(a, b, atol=3e-2, rtol=2e-2)

    def test_tile_bits_of_a_batch(self):
        text = "return attention { inputs = { x = { axes = {'b', 'n'}, dtype = 'bool' } }, mask_mod = function(b, h, q, kv) return x[{b, kv}] end }"
        attention, batch = luattn.attention(text), luattn.Batch()
        spec = attention._spec
        x = torch.arange(200)[None] < 90
        q, k, v, dout = (torch.randn(1, 2, n, 16) for n in (150, 200, 200, 150))
        want = self.compute(attention, (q, k, v), dout, {"x": x}, {})
        host = _tensors.fill, _tensors.run, _tensors.results, _tensors.gradients
        _tensors.fill, _tensors.run, _tensors.results, _tensors.gradients = fill, run, results, gradients
        try:
            q, k, v, dout, x, other = (on_device(t) for t in (q, k, v, dout, x, x))
            frame = take_frame(spec, False)
            frame.set(fill, (q, k, k, None, None, None))
            frame.set_inputs(fill, (x,))
            kernel, size = frame.mask_size(engine_of(0))
            self.assertGreater(size, 0)
            bits = batch._bits[spec] = Bits(on_device(torch.zeros(size, dtype=torch.uint8)))
            frame.prepare_mask(bits.handle, kernel, bits.memory.data_ptr(), size, 0)
            give_back(frame)
            found = self.compute(attention, (q, k, v), dout, {"x": x, "batch": batch}, {})
            with self.assertRaisesRegex(luattn.InvalidError, "batch: its tile bits were made for another call: the address of input 'x'"):
                attention(q, k, v, x=other, batch=batch)
        finally:
            _tensors.fill, _tensors.run, _tensors.results, _tensors.gradients = host
        for a, b in zip(found, want):
            self.assertLess((a.double() - b.double()).norm() / b.double().norm(), 1e-5)

    def test_numbers_that_change(self):
        """An offset that is an input of one element from its second value on: indices, comparisons and tiles."""
        bias = torch.randn(2, 300)
        q, k, v = (torch.randn(1, 2, n, 16) for n in (70, 200, 200))
        _programs.clear()
        for offset in (0, 130, 57):
            mask = flex.create_block_mask(lambda b, h, i, j: (i + offset >= j) & (i + offset - j < 50), None, None, 70, 200)
            mod = lambda s, b, h, i, j: s + on[h, i + offset - j + 100]  # noqa: B023, E731
            on = bias
            want = flex.flex_attention(q, k, v, mod, mask)
            with (
                mock.patch.multiple(_tensors, fill=fill, run=run, results=results),
                mock.patch.object(_programs, "_integer", lambda x, _: on_device(torch.tensor(x))),
            ):
                on = on_device(bias)
                o = flex.flex_attention(*map(on_device, (q, k, v)), mod, mask)
            self.assertLess((o - want).norm() / want.norm(), 1e-5)
        self.assertEqual(len(_programs.specs()), 2)

    def test_bits_of_a_block_mask(self):
        """The mask is evaluated once for a BlockMask and each spec, and anew after a write to what it reads."""
        x = on_device(torch.arange(100)[None] < 70)
        q, k, v, dout = (on_device(torch.randn(1, 1, n, 16)) for n in (80, 100, 100, 80))
        bias = on_device(torch.randn(100))
        mods = (None, lambda s, b, h, i, j: s + bias[j])
        evaluated = []

        def prepare_mask(batch, spec, *rest, real=_tensors.prepare_mask):
            real(batch, spec, *rest)
            evaluated.append(bool(batch._bits))

        def step(mask, mods=mods):
            found, state = [], (_tensors.fill, _tensors.run, _tensors.results, _tensors.gradients)
            for mod in mods:
                tensors = [t.detach().requires_grad_() for t in (q, k, v)]
                o = flex.flex_attention(*tensors, mod, mask)
                found += [o.detach(), *torch.autograd.grad(o, tensors, dout)]
            self.assertEqual(state, (_tensors.fill, _tensors.run, _tensors.results, _tensors.gradients))
            return found

        def check(mask, count, mods=mods):
            """How often it was evaluated, and that all is as without bits that are kept."""
            evaluated.clear()
            found = step(mask, mods)
            self.assertEqual(evaluated, [True] * count)
            with mock.patch.object(_bits, "_may_keep", lambda q: False):
                for a, b in zip(found, step(mask, mods)):
                    torch.testing.assert_close(a, b, atol=0, rtol=0)

        on_machine = dict(fill=fill, run=run, results=results, gradients=gradients, memory=memory, place=lambda q: (0, 0))
        with (
            mock.patch.multiple(_tensors, **on_machine, prepare_mask=prepare_mask),
            mock.patch.object(_bits, "_may_keep", lambda q: True),
        ):
            mask = flex.create_block_mask(lambda b, h, i, j: x[b, j], None, None, 80, 100)
            check(mask, 2, [*mods, *mods, *mods])
            check(mask, 0)
            x.copy_(on_device(torch.arange(100)[None] >= 30))
            check(mask, 2)
            bias.mul_(2)  # which the mask does not read
            check(mask, 0)
            x[0, :64] = False
            o = flex.flex_attention(q.detach().requires_grad_(), k, v, None, mask)
            want = on_device(torch.autograd.grad(o, o.grad_fn.saved_tensors[0], dout, retain_graph=True)[0])
            x2, keep = x, on_device(x)
            x = on_device(torch.arange(100)[None] < 60)  # another tensor in the mod
            check(mask, 2)
            # Backward of the call before still has the bits of its own.
            torch.testing.assert_close(torch.autograd.grad(o, o.grad_fn.saved_tensors[0], dout)[0], want, atol=0, rtol=0)
            self.assertTrue(torch.equal(x2, keep))
            # A number that the mask holds, alone or with a score_mod, and that changes.
            limit = 80.0
            mask = flex.create_block_mask(lambda b, h, i, j: x[b, j] & (j < limit), None, None, 80, 100)
            mods = [None, lambda s, b, h, i, j: s * limit]
            for limit, count in ((80.0, 2), (50.0, 2), (50.0, 0), (80.0, 2)):  # noqa: B007
                check(mask, count, mods)
            # Blocks that are given, and lists of blocks that are written to.
            num, indices = on_device(torch.full((1, 1, 2), 2, dtype=torch.int32)), on_device(torch.tensor([[[[0, 1], [1, 0]]]], dtype=torch.int32))
            blocks = flex.BlockMask.from_kv_blocks(num, indices, None, None, 64, None, (80, 100))
            with mock.patch.object(_block_mask, "_table", lambda *a, real=_block_mask._table: on_device(real(*a))):
                check(blocks, 1, [None, None])
                num[0, 0, 1] = 1
                check(blocks, 1, [None, None])
            count = len(_bits._held)
            del mask, blocks
            self.assertEqual(len(_bits._held), count - 2)
            causal = flex.create_block_mask(lambda b, h, i, j: i >= j, None, None, 80, 100)
            evaluated.clear()
            step(causal, [None, None])
            self.assertEqual(evaluated, [False])  # ranges decide it

    def test_prepare(self):
        gemma2 = luattn.attention(f"{ROOT}/examples/gemma2.lua")
        with self.assertLogs("luattn", "INFO") as logs:
            gemma2.prepare(torch.float32, 48)
        self.assertEqual(len(logs.output), len({line.split(":")[3] for line in logs.output}))
        for line in logs.output:
            self.assertRegex(line, r"gemma2: (forward|backward), f32, head dim 48, .*: (compiled|from the cache) in \d+ ms")
        with self.assertNoLogs("luattn", "INFO"):
            gemma2.prepare(torch.float32, 48)
        causal = luattn.attention("return attention { block_mask = causal_bottom_right() }")
        with self.assertLogs("luattn", "INFO") as logs:
            causal.prepare(torch.bfloat16, 64, decode=True)
        few = [line for line in logs.output if "few queries" in line]
        self.assertEqual(len(few), 3)
        q, k, v = (on_device(torch.randn(1, 2, n, 64).bfloat16()) for n in (1, 1024, 1024))
        with mock.patch.multiple(_tensors, fill=fill, run=run, results=results), self.assertNoLogs("luattn", "INFO"):
            causal(q, k, v)
        torch.use_deterministic_algorithms(True)
        with mock.patch("luattn._prepare.call") as call:
            causal.prepare(torch.bfloat16, 64, decode=True)
        torch.use_deterministic_algorithms(False)
        self.assertEqual([one.args[1] for one in call.call_args_list], [engine_of(0, True)])
        with self.assertRaisesRegex(luattn.InvalidError, "prepare: dtype: is int32, expected one of float64"):
            gemma2.prepare("int32", 64)
        with self.assertRaisesRegex(luattn.InvalidError, "q: has head dim 264, expected 1 to 256"):
            gemma2.prepare("bfloat16", 264)

    def test_a_handler_that_raises(self):
        """The call that compiles raises what it raises, once; the kernel is there."""

        class Full(logging.Handler):
            def handle(self, record):
                raise OSError("no space left")

        attention = luattn.attention("return attention { score_mod = function(s) return s + 3 end }")
        q, k, v = (torch.randn(1, 2, 20, 16) for _ in "qkv")
        want = attention(q, k, v)
        q, k, v = map(on_device, (q, k, v))
        logger, handler = logging.getLogger("luattn"), Full()
        level = logger.level
        logger.setLevel(logging.INFO)
        logger.addHandler(handler)
        try:
            with mock.patch.multiple(_tensors, fill=fill, run=run, results=results):
                with self.assertRaisesRegex(OSError, "no space left"):
                    attention(q, k, v)
                torch.testing.assert_close(attention(q, k, v), want)
            with self.assertRaisesRegex(OSError, "no space left"):
                attention.prepare(torch.float32, 24, threads=2)
            attention.prepare(torch.float32, 24, threads=2)
        finally:
            logger.removeHandler(handler)
            logger.setLevel(level)

    def test_specs_are_freed_with_their_kernels(self):
        freed, free = [], _spec.lib.luattn_spec_free
        q, k, v = (torch.randn(1, 2, 20, 16) for _ in "qkv")
        on = [on_device(t) for t in (q, k, v)]
        with mock.patch.object(_spec, "lib", mock.Mock(wraps=_spec.lib)) as lib:
            lib.luattn_spec_free = lambda pointer: (freed.append(pointer), free(pointer))
            for i in range(18):
                attention = luattn.attention(f"return attention {{ score_mod = function(s) return s * {i % 2 + 2} end }} -- {i}")
                if i < 4:
                    want = attention(q, k, v)
                    with mock.patch.multiple(_tensors, fill=fill, run=run, results=results):
                        torch.testing.assert_close(attention(*on), want, atol=1e-5, rtol=1e-5)
        self.assertGreaterEqual(len(freed), 16)  # many at once

    def compute(self, attention, tensors, dout, given, inputs):
        tensors = [t.detach().requires_grad_() for t in tensors]
        o, lse = attention(*tensors[:3], return_lse=True, **{**given, **dict(zip(inputs, tensors[3:]))})
        return o, lse, *torch.autograd.grad(o, tensors, dout)


if __name__ == "__main__":
    unittest.main()
