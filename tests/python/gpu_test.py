"""gpu_test.py: torch tensors on a GPU: numbers beside the CPU path, streams, CUDA graphs, torch.compile, determinism, host time.
Exits with 77 without torch or a GPU."""

import functools
import os
import subprocess
import sys
import tempfile
import time
import unittest
from unittest import mock

from with_torch import ROOT, torch  # exits without torch, so first

import luattn
from luattn import _signature, _tensors, flash_attn, flex, natten

if torch.cuda.is_initialized():
    sys.exit("importing luattn started CUDA")
if not torch.cuda.is_available():
    print("no GPU: skipped")
    sys.exit(77)


def example(name):
    return luattn.attention(f"{ROOT}/examples/{name}.lua")


def rand(*shape, dtype=torch.bfloat16, device="cuda"):
    return torch.randn(*shape, device=device).to(dtype).requires_grad_()


def apart(test):
    """In a process of its own: a capture that fails leaves PyTorch's generators and streams of no use to other tests."""

    @functools.wraps(test)
    def run(self):
        if os.environ.get("GPU_TEST_APART"):
            return test(self)
        code = [sys.executable, "-B", os.path.abspath(__file__), f"Gpu.{test.__name__}"]
        ran = subprocess.run(code, capture_output=True, text=True, env=dict(os.environ, GPU_TEST_APART="1"))
        self.assertEqual(ran.returncode, 0, ran.stdout + ran.stderr)

    return run


class Gpu(unittest.TestCase):
    def setUp(self):
        torch.manual_seed(1)

    def compute(self, attention, tensors, dout, names, **given):
        tensors = [t.detach().requires_grad_() for t in tensors]
        o, lse = attention(*tensors[:3], return_lse=True, **dict(zip(names, tensors[3:])), **given)
        return o, lse, *torch.autograd.grad(o, tensors, dout)

    def close(self, found, want, limit):
        for a, b in zip(found, want):
            self.assertEqual((a.dtype, a.shape), (b.dtype, b.shape))
            self.assertLess((a.cpu().double() - b.double()).norm() / b.double().norm(), limit)

    def test_tangents(self):
        """Of luattn.jvp beside the math in float64, of a module's torch.func.jvp with gradients of its weights, and of jacobians by vmap."""
        attention = example("causal")

        def math(q, k, v):
            k, v = (t.repeat_interleave(q.shape[1] // k.shape[1], 1) for t in (k, v))
            s = (q @ k.mT * q.shape[-1] ** -0.5).masked_fill(~torch.ones(q.shape[2], k.shape[2], dtype=torch.bool, device="cuda").tril(), -torch.inf)
            return s.softmax(-1) @ v

        for dtype, dim, limit in ((torch.float64, 40, 1e-12), (torch.float32, 64, 1e-5), (torch.bfloat16, 72, 1e-2), (torch.float16, 128, 2e-3)):
            q, k, v, *along = (torch.randn(2, n, 150, dim, device="cuda").to(dtype) for n in (4, 2, 2) * 2)
            want = torch.func.jvp(math, tuple(t.double() for t in (q, k, v)), tuple(t.double() for t in along))
            for got, exact in zip(luattn.jvp(attention, (q, k, v), along), want):
                with self.subTest(dtype=dtype):
                    self.assertLess((got.double() - exact).norm() / exact.norm(), limit)
        linear = torch.nn.Linear(32, 96, device="cuda")

        def net(f, x):
            return f(*linear(x).view(2, 20, 3, 2, 16).permute(2, 0, 3, 1, 4)).sum(1)

        x, xt = (torch.randn(2, 20, 32, device="cuda") for _ in range(2))
        found = []
        for f in (attention, math):
            u, du = torch.func.jvp(functools.partial(net, f), (x,), (xt,))
            found.append((u, du, *torch.autograd.grad((u - 0.9 * (u - du).detach()).square().sum(), linear.parameters())))
        for got, exact in zip(*found):
            self.assertLess((got - exact).norm() / exact.norm(), 1e-4)
        for dtype, limit in ((torch.float64, 1e-12), (torch.float32, 1e-5), (torch.bfloat16, 2e-2)):
            q, k, v, *along = (torch.randn(2, n, 150, 64, device="cuda").to(dtype) for n in (4, 2, 2) * 2)
            found = []
            for f, change in ((attention, torch.clone), (math, torch.Tensor.double)):
                leaves = [change(t).detach().requires_grad_() for t in (q, k, v)]
                first = torch.autograd.grad(f(*leaves).square().sum(), leaves, create_graph=True)
                found.append(torch.autograd.grad(sum((d * change(t)).sum() for d, t in zip(first, along)), leaves))
            for got, exact in zip(*found):
                with self.subTest("twice", dtype=dtype):
                    self.assertLess((got.double() - exact).norm() / exact.norm(), limit)
        q, k, v = (torch.randn(1, 2, 6, 8, device="cuda", dtype=torch.float64) for _ in range(3))
        got, exact = (torch.func.jacfwd(lambda q, f=f: f(q, k, v).sum(-1))(q) for f in (attention, math))
        self.assertLess((got - exact).norm() / exact.norm(), 1e-12)

    def test_numbers_beside_the_cpu_path(self):
        for name, inputs, given in (
            ("causal", {}, {}),
            ("gemma2", {}, {"cap": 5.0}),
            ("t5_relative_bias", {"bias": torch.randn(4, 32)}, {}),
            ("attention_sink", {"sinks": torch.randn(4)}, {}),
        ):
            attention = example(name)
            for dtype, limit in ((torch.bfloat16, 1e-2), (torch.float16, 2e-3), (torch.float32, 1e-5)):
                with self.subTest(f"{name} {dtype}"):
                    q, k, v, dout = (
                        torch.randn(2, n, h, 64).to(dtype).transpose(1, 2)
                        for n, h in ((150, 4), (170, 2), (170, 2), (150, 4))
                    )
                    tensors = [q, k, v, *inputs.values()]
                    want = self.compute(attention, tensors, dout, inputs, **given)
                    found = self.compute(attention, [t.cuda() for t in tensors], dout.cuda(), inputs, **given)
                    self.close(found, want, limit)
                    self.assertEqual(found[0].stride(), want[0].stride())

    def test_sum_and_empty(self):
        causal = example("causal")
        q = rand(1, 2, 100, 64)
        causal(q, q, q).sum().backward()
        self.assertTrue(q.grad.isfinite().all())
        for b, n, m in ((0, 5, 5), (1, 0, 5), (1, 5, 0)):
            q, k = rand(b, 2, n, 64), rand(b, 2, m, 64)
            o = causal(q, k, k)
            o.sum().backward()
            self.assertTrue((o == 0).all() and (q.grad == 0).all() and (k.grad == 0).all())

    def test_packed(self):
        causal = example("causal")
        cu = torch.tensor([0, 300, 300, 1000], dtype=torch.int32)
        q, k, v = (rand(1000, h, 64).detach() for h in (4, 2, 2))
        given = {"cu_seqlens_q": cu, "cu_seqlens_k": cu}
        on_gpu = {name: t.cuda() for name, t in given.items()}
        for lengths in (given, {**on_gpu, "max_seqlen_q": 700, "max_seqlen_k": 700}):
            o = causal(q, k, v, **lengths)
            one = [t[None, 300:] for t in (q, k, v)]
            torch.testing.assert_close(o[None, 300:], causal(*one, layout="bshd"), atol=2e-2, rtol=2e-2)
        with self.assertRaisesRegex(luattn.InvalidError, "causal: max_seqlen_q: is missing: the host does not read"):
            causal(q, k, v, **on_gpu)

    def test_flash_attn(self):
        """flash-attn's functions beside the CPU path, with cu_seqlens on the GPU; the same bits twice where it was asked for."""
        cu = torch.tensor([0, 300, 300, 1000], dtype=torch.int32)
        qkv = torch.randn(1000, 3, 4, 60).bfloat16()
        slopes = torch.rand(3, 4)
        dout = torch.randn(1000, 4, 60).bfloat16()
        for given in ({}, {"window_size": (100, -1), "softcap": 5.0}, {"alibi_slopes": slopes}):
            with self.subTest(str(given)):

                def both(device):
                    t = qkv.to(device).requires_grad_()
                    on = {name: x.to(device) if isinstance(x, torch.Tensor) else x for name, x in given.items()}  # noqa: B023
                    o, lse, _ = flash_attn.flash_attn_varlen_qkvpacked_func(
                        t, cu.to(device), 700, causal=True, deterministic=True, return_attn_probs=True, **on
                    )
                    return o, lse, torch.autograd.grad(o, t, dout.to(device))[0]

                found = both("cuda")
                self.close(found, both("cpu"), 1e-2)
                self.assertTrue(all(map(torch.equal, both("cuda"), found)))

    def test_natten(self):
        """Windows of planes and videos with extra keys and a bias, and the same in two steps, beside float64 on the CPU."""

        def by_taps(q, k, v, kernel, rpb):
            first = [t.movedim(-2, 1) for t in (q * q.shape[-1] ** -0.5, k, v)]
            of = {n: getattr(natten, f"na{len(kernel)}d_{n}") for n in ("qk", "av")}
            return of["av"](of["qk"](*first[:2], kernel, rpb=rpb).softmax(-1), first[2], kernel).movedim(1, -2)

        for extents, kernel in (((20, 33), (7, 5)), ((5, 9, 20), (3, 4, 7))):
            shapes = [(2, *extents, heads, 64) for heads in (4, 2, 2)] + [(2, 9, 2, 64)] * 2 + [(4, *(2 * k - 1 for k in kernel))]
            for dtype, limit in ((torch.float64, 1e-12), (torch.float32, 2e-5), (torch.bfloat16, 0.02)):
                for two_steps in (False, True):
                    given = [rand(*shape, dtype=dtype, device="cpu") for shape in shapes]
                    found = []
                    for t in ([x.detach().double().requires_grad_() for x in given], [x.detach().cuda().requires_grad_() for x in given]):
                        if two_steps:
                            o = by_taps(*t[:3], kernel, t[5])
                            learned = [*t[:3], t[5]]
                        else:
                            o = natten.neighborhood_attention_generic(*t[:3], kernel, additional_keys=t[3], additional_values=t[4], rpb=t[5])
                            learned = t
                        found.append([o, *torch.autograd.grad(o, learned, torch.ones_like(o))])
                    with self.subTest(extents=extents, dtype=dtype, two_steps=two_steps):
                        for a, b in zip(found[1], found[0]):
                            self.assertLess((a.cpu().double() - b).norm() / b.norm(), limit)

    def test_tune(self):
        causal = example("causal")
        q, k, v = (rand(1, 4, 1024, 64).detach() for _ in "qkv")
        want = causal(q, k, v)
        with tempfile.TemporaryDirectory() as folder, mock.patch.dict(os.environ, LUATTN_CACHE_DIR=folder):
            found = causal.tune(q, k, v, backward=True, time_limit=8)
            print(found)
            self.assertRegex(found, "^forward: .*\nbackward: ")
            torch.testing.assert_close(causal(q, k, v), want, atol=2e-2, rtol=2e-2)
            self.assertEqual("tuned: " in causal.plan(q, k, v), "forward: nothing" not in found)

    def test_a_tensor_elsewhere(self):
        causal = example("causal")
        q = rand(1, 2, 100, 64)
        with self.assertRaisesRegex(luattn.InvalidError, "causal: k: is on cpu, and q on cuda:0: move one"):
            causal(q, q.cpu(), q)

    def test_streams(self):
        causal = example("causal")
        q = rand(2, 4, 1024, 64).detach()
        want = causal(q, q, q)
        stream = torch.cuda.Stream()
        for _ in range(20):
            late = torch.empty_like(q)
            with torch.cuda.stream(stream):
                torch.cuda._sleep(1000000)
                late.copy_(q)
                o = causal(late, late, late)
            stream.synchronize()
            self.assertTrue(torch.equal(o, want))

    @apart
    def test_cuda_graph(self):
        gemma2 = example("gemma2")
        gemma2.prepare(torch.bfloat16, 64)
        q, k, v = (rand(1, 2, 256, 64) for _ in "qkv")
        torch.autograd.grad(gemma2(q, k, v).sum(), (q, k, v))  # autograd's own first call
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            o = gemma2(q, k, v)
            found = torch.autograd.grad(o, (q, k, v), torch.ones_like(o))
        with torch.no_grad():
            q.copy_(torch.randn_like(q))
        graph.replay()
        fresh = gemma2(q, k, v)
        self.assertTrue(torch.equal(o, fresh))
        for a, b in zip(found, torch.autograd.grad(fresh, (q, k, v), torch.ones_like(o))):
            torch.testing.assert_close(a, b)

    def test_calls_of_one_signature(self):
        """Launched from kept frames: what the general way gives, on other streams and in a CUDA graph, with workspaces of their own."""
        causal, used = example("causal"), torch.tensor([700, 1300], dtype=torch.int32, device="cuda")
        table = torch.randperm(64, device="cuda").to(torch.int32).reshape(2, 32)

        def cache(rows):
            q, new = torch.randn(2, 1, 8, 64, device="cuda").half(), torch.randn(2, 2, 1, 2, 64, device="cuda").half()
            k, v = torch.randn(2, 64, 64, 2, 64, device="cuda").half()
            given = {"k": new[0], "v": new[1]} if rows else {}
            o, lse = flash_attn.flash_attn_with_kvcache(q, k, v, cache_seqlens=used, block_table=table, causal=True, return_softmax_lse=True, **given)
            return o, lse, k, v

        def both():
            q, k, v = (rand(2, 150, n, 64) for n in (4, 2, 2))
            o = causal(q, k, v, layout="bshd")
            return o, *torch.autograd.grad(o, (q, k, v), torch.randn_like(o))

        for name, call in (("dense", both), ("kvcache", lambda: cache(False)), ("new rows", lambda: cache(True))):
            with self.subTest(name):
                found, want = [], []
                for seed in range(4):
                    torch.manual_seed(seed)
                    with torch.cuda.stream(torch.cuda.Stream() if seed % 2 else torch.cuda.current_stream()):
                        torch.cuda.current_stream().wait_stream(torch.cuda.default_stream())
                        found.append(call())
                    torch.cuda.synchronize()
                with mock.patch.object(_signature, "find", lambda *args: (None, None)):
                    for seed in range(4):
                        torch.manual_seed(seed)
                        want.append(call())
                for a, b in zip(found, want):
                    self.close(a, [t.cpu() for t in b], 1e-2)
                    self.assertEqual([t.stride() for t in a], [t.stride() for t in b])

    @apart
    def test_known_calls_in_a_graph(self):
        causal = example("causal")
        tensors = [torch.randn(1, 2, 200, 64, device="cuda").bfloat16() for _ in "qkv"]
        for _ in range(2):
            causal(*tensors)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            o = causal(*tensors)
        for seed in range(2):
            torch.manual_seed(seed)
            for t in tensors:
                t.copy_(torch.randn_like(t))
            graph.replay()
            self.close([o], [causal(*(t.clone() for t in tensors)).cpu()], 1e-3)

    @apart
    def test_explain_and_weights(self):
        """The plan is the GPU's, tiles are those that the mask leaves, and weights are those of the CPU."""
        gemma2, (q, k, v) = example("gemma2"), [rand(2, heads, 300, 64).detach() for heads in (4, 2, 2)]
        found = gemma2.explain(q, k, v, cap=30.0)
        self.assertIn("family ", found.plan)
        self.assertEqual((found.kept, found.scores), (8 * 300 * 301 // 2, 8 * 300 * 300))
        self.assertEqual(found.full + found.partial + found.skipped, 8 * -(-300 // found.tile[0]) * -(-300 // found.tile[1]))
        self.assertEqual(gemma2.explain(*(t.cpu() for t in (q, k, v)), arch="".join(map(str, torch.cuda.get_device_capability()))).kept, found.kept)
        self.close([gemma2.weights(q, k, v, cap=30.0)], [gemma2.weights(*(t.cpu() for t in (q, k, v)), cap=30.0)], 1e-2)

    def test_batch(self):
        """Masks of two attentions, evaluated once, in a graph whose replays evaluate them again; too many queries for the kernel for few,
        which asks masks itself."""
        inputs = "inputs = { x = { axes = {'b', 'n'}, dtype = 'bool' } }"
        kept = "x[{b, kv}]", "kv <= q and x[{b, kv}]"
        layers = [
            luattn.attention(f"return attention {{ {inputs}, mask_mod = function(b, h, q, kv) return {text} end }}") for text in kept
        ]
        q, k, v = (rand(2, 2, 1024, 64) for _ in "qkv")
        x = torch.arange(1024, device="cuda")[None] < torch.tensor([[600], [800]], device="cuda")

        def f(batch=None):
            # Autograd meets the stream of a leaf's first use, which a capture may not: no graph lives on, and each layer has its own.
            found = []
            for layer in layers:
                o = layer(q, k, v, x=x, batch=batch)
                found += [o.detach(), *torch.autograd.grad(o, (q, k, v), torch.ones_like(o))]
            return found

        batch, want = luattn.Batch(), f()
        for layer in layers:
            batch.prepare(layer, q, k, x=x)
        self.close(f(batch), [t.cpu() for t in want], 1e-2)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for layer in layers:
                batch.prepare(layer, q, k, x=x)
            found = f(batch)
        x.copy_(torch.arange(1024, device="cuda")[None] >= 400)
        graph.replay()
        self.close(found, [t.cpu() for t in f()], 1e-2)
        with self.assertRaisesRegex(luattn.InvalidError, "the length of k was 1024, and is 1000"):
            layers[0](q, k[:, :, :1000], v[:, :, :1000], x=x, batch=batch)

    @apart
    def test_lists_of_blocks(self):
        """One Batch for graphs of calls over caches of 3 and 9 entries and for a graph that prepares too; NaN behind each length."""
        causal, batch = luattn.attention("return attention { block_mask = causal_bottom_right() }"), luattn.Batch()
        lengths = ([2500, 0, 33, 1, 4000, 2048, 7, 16, 4096], [1, 4096, 2049, 17, 3, 0, 4095, 2100, 64])
        stream, graphs = torch.cuda.Stream(), []

        def write(tensors, used, turn):
            used.copy_(torch.tensor(lengths[turn][: len(used)]))
            for t in tensors[1:]:
                t.normal_()
                t.masked_fill_((torch.arange(4096, device="cuda") >= used[:, None])[:, None, :, None], torch.nan)

        with torch.no_grad():
            for entries, prepares in ((3, False), (9, False), (9, True)):
                q, k, v = tensors = [rand(entries, h, n, 128).detach() for h, n in ((8, 2), (2, 4096), (2, 4096))]
                used = torch.empty(entries, dtype=torch.int32, device="cuda")
                prepare = functools.partial(batch.prepare, causal, q, k, seqused_k=used)
                write(tensors, used, 0)
                with torch.cuda.stream(stream):
                    prepare(), causal(q, k, v, seqused_k=used, batch=batch)
                torch.cuda.synchronize()
                self.assertEqual(len(batch._splits), 1)
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph, stream=stream):
                    if prepares:
                        prepare()
                    o = causal(q, k, v, seqused_k=used, batch=batch)
                graphs.append((graph, o, tensors, used, None if prepares else prepare))
            for turn in (1, 0):
                for _, o, tensors, used, prepare in graphs:
                    write(tensors, used, turn)
                    o.fill_(torch.nan)
                    if prepare is not None:
                        prepare()
                for graph, o, tensors, used, _ in graphs:
                    graph.replay()
                    want = causal(*(t.cpu() for t in tensors), seqused_k=used.cpu())
                    for b in range(len(used)):
                        torch.testing.assert_close(o[b].cpu(), want[b], atol=1e-3 if used[b] > 2000 else 2e-2, rtol=2e-2)

    def test_neighbours(self):
        """A deterministic entry of a cache has the same bits alone and among others, with a list and without."""
        causal, found = luattn.attention("return attention { block_mask = causal_bottom_right() }"), {True: [], False: []}
        q, k, v = (rand(20, h, n, 128).detach() for h, n in ((8, 1), (2, 6000), (2, 6000)))
        used = torch.tensor([5000, *range(0, 6000, 316)], dtype=torch.int32, device="cuda")
        for deterministic in (True, False):
            torch.use_deterministic_algorithms(deterministic)
            for n in (1, 3, 20):
                batch, given = luattn.Batch(), {"seqused_k": used[:n]}
                batch.prepare(causal, q[:n], k[:n], **given)
                found[deterministic] += [causal(q[:n], k[:n], v[:n], **given, batch=one)[0] for one in (None, batch)]
        for o in found[True][1:]:
            self.assertTrue(torch.equal(o, found[True][0]))
        self.assertFalse(all(torch.equal(o, found[False][0]) for o in found[False]))

    @apart
    def test_compile(self):
        t5 = example("t5_relative_bias")
        bias = torch.randn(4, 32, device="cuda", requires_grad=True)

        def f(q, k, v, bias):
            return t5(q * 2, k, v, bias=bias) + 1

        for mode in ("default", "reduce-overhead"):
            run = torch.compile(f, fullgraph=True, mode=mode)
            for _ in range(4):
                q, k, v = (rand(2, 4, 512, 64) for _ in "qkv")
                want = torch.autograd.grad(f(q, k, v, bias).float().sum(), (q, k, v, bias))
                found = torch.autograd.grad(run(q, k, v, bias).float().sum(), (q, k, v, bias))
                for a, b in zip(found, want):
                    torch.testing.assert_close(a, b, atol=2e-2, rtol=2e-2)

    def test_deterministic(self):
        t5 = example("t5_relative_bias")
        bias = torch.randn(4, 32, device="cuda", requires_grad=True)
        q, k, v = (rand(4, 4, 1024, 64) for _ in "qkv")
        torch.use_deterministic_algorithms(True)
        try:
            one, *others = (
                torch.autograd.grad(t5(q, k, v, bias=bias).sum(), (q, k, v, bias)) for _ in range(5)
            )
        finally:
            torch.use_deterministic_algorithms(False)
        self.assertTrue(all(torch.equal(a, b) for other in others for a, b in zip(one, other)))

    def test_flex(self):
        slopes = torch.rand(4, device="cuda", requires_grad=True)
        mask = flex.create_block_mask(lambda b, h, i, j: i >= j, None, None, 512, 512)
        q, k, v = (rand(1, 4, 512, 64) for _ in "qkv")
        o = flex.flex_attention(q, k, v, lambda s, b, h, i, j: s + slopes[h] * (j - i), mask)
        bias = slopes[:, None, None] * (
            torch.arange(512, device="cuda") - torch.arange(512, device="cuda")[:, None]
        )
        bias = bias.masked_fill(torch.ones(512, 512, device="cuda").triu(1).bool(), -torch.inf)
        want = torch.nn.functional.scaled_dot_product_attention(q.float(), k.float(), v.float(), bias[None])
        self.assertLess((o - want).norm() / want.norm(), 1e-2)
        found, reference = (torch.autograd.grad(x.float().sum(), slopes)[0] for x in (o, want))
        self.assertLess((found - reference).norm() / reference.norm(), 2e-2)

    @apart
    def test_bits_of_a_block_mask(self):
        """A BlockMask of data is evaluated once for its layers, and again after a write; a graph's replays see writes, too."""
        x = torch.arange(512, device="cuda")[None] < torch.tensor([[300], [400]], device="cuda")
        mask = flex.create_block_mask(lambda b, h, i, j: x[b, j] & (i >= j), None, None, 512, 512)
        q, k, v = (rand(2, 2, 512, 64) for _ in "qkv")
        dout = torch.ones_like(q)

        def step():
            found = []
            for _ in range(3):
                o = flex.flex_attention(q, k, v, None, mask)
                found += [o.detach(), *torch.autograd.grad(o, (q, k, v), dout)]
            return found

        def check(count):
            with mock.patch.object(_tensors, "prepare_mask", wraps=_tensors.prepare_mask) as prepare:
                found = step()
                self.assertEqual(prepare.call_count, count)
            want = torch.nn.functional.scaled_dot_product_attention(q, k, v, x[:, None, None] & torch.ones(512, 512, device="cuda").tril().bool())
            for o in found[::4]:
                torch.testing.assert_close(o[:, :, 250:], want[:, :, 250:], atol=2e-2, rtol=2e-2)

        check(1)
        check(0)
        x.copy_(torch.arange(512, device="cuda")[None] >= 200)
        check(1)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            found = step()
        x.copy_(torch.arange(512, device="cuda")[None] < 100)
        graph.replay()
        self.close(found, [t.cpu() for t in step()], 1e-2)

    def test_a_scalar_on_the_gpu(self):
        q = rand(1, 2, 64, 64)
        with self.assertRaisesRegex(
            luattn.InvalidError, "gemma2: scalar 'cap' is a tensor on cuda:0.*declare it as an input"
        ):
            example("gemma2")(q, q, q, cap=torch.ones((), device="cuda"))

    def test_host_time(self):
        """Shows it: medians of 2000 calls, no synchronisation between them."""
        causal = example("causal")
        q, k, v = (rand(1, 2, 128, 64) for _ in "qkv")
        dout = torch.ones_like(q)

        def sdpa(q, k, v):
            return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)

        def median(run):
            times = []
            for i in range(2200):
                start = time.perf_counter_ns()
                run()
                times.append(time.perf_counter_ns() - start)
                if i % 100 == 0:
                    torch.cuda.synchronize()
            return sorted(times[200:])[1000] / 1000

        for name, f in (("luattn", causal), ("SDPA", sdpa)):
            with torch.no_grad():
                without = median(lambda: f(q, k, v))  # noqa: B023
            both = median(lambda: torch.autograd.grad(f(q, k, v), (q, k, v), dout))  # noqa: B023
            print(f"{name}: {without:.1f} us without gradients, {both:.1f} us forward and backward")


if __name__ == "__main__":
    unittest.main()
