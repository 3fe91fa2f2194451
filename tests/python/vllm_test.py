"""vllm_test.py: luattn.vllm's backend, called with metadata as vLLM builds it, beside attention in float64: prefill, chunks of it and decode in one
batch, new rows of the cache, orders of its axes, slots that are none. Where vllm is not installed, small classes stand for its base classes.
Exits with 77 without torch."""

import contextlib
import dataclasses
import enum
import os
import re
import subprocess
import sys
import types
import unittest
from unittest import mock

from with_torch import ROOT, torch  # exits without torch, so first

import luattn  # noqa: E402

try:
    import vllm  # noqa: F401

    IS_REAL = True
except ImportError:
    IS_REAL = False


def stand_in():
    """Modules with the names of vLLM 0.33.0 that luattn.vllm asks for, and the members of CommonAttentionMetadata that it reads."""
    backend, registry = types.ModuleType("vllm.v1.attention.backend"), types.ModuleType("vllm.v1.attention.backends.registry")

    class Generic:
        def __class_getitem__(cls, _):
            return cls

    class AttentionMetadataBuilder(Generic):
        def __init__(self, kv_cache_spec, layer_names, vllm_config, device):
            self.kv_cache_spec, self.layer_names, self.vllm_config, self.device = kv_cache_spec, layer_names, vllm_config, device

    class AttentionBackendEnum(enum.Enum):
        FLASH_ATTN = "..."

        @classmethod
        def register(cls, name, value):
            member = object.__new__(cls)
            member._name_, member._value_ = name, value
            cls._member_map_[name] = member
            return member

        def get_class(self):
            module, _, name = self.value.rpartition(".")
            return getattr(__import__(module, fromlist=[name]), name)

    fields = "query_start_loc query_start_loc_cpu seq_lens num_reqs num_actual_tokens max_query_len max_seq_len block_table_tensor slot_mapping"
    backend.CommonAttentionMetadata = dataclasses.make_dataclass("CommonAttentionMetadata", [*fields.split(), ("causal", object, True)])
    backend.AttentionBackend, backend.AttentionImpl = type("AttentionBackend", (), {}), type("AttentionImpl", (Generic,), {})
    backend.AttentionMetadataBuilder = AttentionMetadataBuilder
    backend.AttentionCGSupport = enum.Enum("AttentionCGSupport", "NEVER UNIFORM_SINGLE_TOKEN_DECODE UNIFORM_BATCH ALWAYS")
    backend.AttentionType = types.SimpleNamespace(DECODER="decoder", ENCODER_ONLY="encoder_only")
    backend.MultipleOf = dataclasses.make_dataclass("MultipleOf", ["base"], frozen=True)
    registry.AttentionBackendEnum = AttentionBackendEnum
    parallel, configs = types.ModuleType("vllm.distributed.parallel_state"), types.ModuleType("vllm.config")
    parallel.model_parallel_is_initialized = lambda: False
    folders = "vllm", "vllm.v1", "vllm.v1.attention", "vllm.v1.attention.backends", "vllm.distributed"
    modules = [*map(types.ModuleType, folders), backend, registry, parallel, configs]
    sys.modules.update({module.__name__: module for module in modules})
    sys.modules["vllm.distributed"].parallel_state, configs.get_current_vllm_config = parallel, None


if not IS_REAL:
    stand_in()

import luattn.vllm  # noqa: E402
from vllm.v1.attention.backend import AttentionType, CommonAttentionMetadata  # noqa: E402
from vllm.v1.attention.backends.registry import AttentionBackendEnum  # noqa: E402

SIZE, BLOCKS, DIM, HEADS, HEADS_KV = 16, 40, 32, 4, 2
# Of each request: queries in a step, and how many keys there are with them. A whole prompt, a chunk of one, two decodes, one without a query.
STEP = ((21, 21), (9, 50), (1, 33), (1, 1), (0, 17))
DEVICE = os.environ.get("LUATTN_TEST_DEVICE", "cpu")
DTYPE = torch.float32 if DEVICE == "cpu" else torch.bfloat16


def config():
    return types.SimpleNamespace(
        scheduler_config=types.SimpleNamespace(max_num_seqs=8, max_num_batched_tokens=128),
        compilation_config=types.SimpleNamespace(max_cudagraph_capture_size=64),
    )


class Step:
    """A cache, in which the keys from before lie, the tensors of a step, and its metadata as vLLM's runner makes it."""

    def __init__(self, lengths=STEP, order="LBHNC", padding=3, seed=5):
        torch.manual_seed(seed)
        axes = {"B": BLOCKS, "H": HEADS_KV, "N": SIZE, "C": 2 * DIM}
        memory = torch.randn([axes[x] for x in order[1:]], device=DEVICE).to(DTYPE)
        self.cache = memory.permute([order[1:].index(x) for x in "BHNC"])  # as vLLM's views are
        queries, keys = zip(*lengths)
        blocks, most = iter(torch.randperm(BLOCKS - 1).add(1).tolist()), -(-max(keys) // SIZE)
        self.table = torch.zeros(len(lengths), most, dtype=torch.int32)
        for b, n in enumerate(keys):
            for i in range(-(-n // SIZE)):
                self.table[b, i] = next(blocks)
        slots = [self.slot(b, p) for b, (n, length) in enumerate(lengths) for p in range(length - n, length)] + [-1] * padding
        starts = torch.tensor([0, *queries]).cumsum(0).int()
        self.lengths, self.tokens = lengths, int(starts[-1])
        self.q, self.k, self.v = (torch.randn(len(slots), heads, DIM, device=DEVICE).to(DTYPE) for heads in (HEADS, HEADS_KV, HEADS_KV))
        self.common = CommonAttentionMetadata(
            query_start_loc=starts.to(DEVICE), query_start_loc_cpu=starts, seq_lens=torch.tensor(keys, dtype=torch.int32, device=DEVICE),
            num_reqs=len(lengths), num_actual_tokens=self.tokens + padding, max_query_len=max(queries), max_seq_len=max(keys),
            block_table_tensor=self.table.to(DEVICE), slot_mapping=torch.tensor(slots, device=DEVICE),
        )  # fmt: skip

    def slot(self, b, position):
        return int(self.table[b, position // SIZE]) * SIZE + position % SIZE

    def rows(self, b):
        """Keys and values of a request, [heads, length, DIM]."""
        n = self.lengths[b][1]
        found = self.cache[self.table[b, : -(-n // SIZE)].long().to(DEVICE)].transpose(0, 1).flatten(1, 2)[:, :n].double()
        return found.split(DIM, -1)

    def run(self, **of_layer):
        given = dict(num_heads=HEADS, head_size=DIM, scale=0.2, num_kv_heads=HEADS_KV, alibi_slopes=None, sliding_window=None, kv_cache_dtype="auto")
        backend = AttentionBackendEnum["LUATTN"].get_class()
        self.impl = backend.get_impl_cls()(**{**given, **of_layer})
        spec = types.SimpleNamespace(block_size=SIZE)
        self.meta = backend.get_builder_cls()(spec, ["layer"], config(), torch.device(DEVICE)).build(0, self.common)
        o = torch.full_like(self.q, float("nan"))
        with torch.inference_mode() if DEVICE == "cpu" else torch.no_grad():
            self.impl.forward(None, self.q, self.k, self.v, self.cache, self.meta, o)
        return o


def reference(step, mod=None, window=None, sinks=None):
    """Attention in float64, of what lies in the cache: mod(scores, distance), and a sink of each head."""
    found = []
    for b, (n, length) in enumerate(step.lengths):
        k, v = (x.repeat_interleave(HEADS // HEADS_KV, 0) for x in step.rows(b))
        q = step.q[int(step.common.query_start_loc_cpu[b]) :][:n].double().transpose(0, 1)
        distance = torch.arange(length - n, length, device=DEVICE)[:, None] - torch.arange(length, device=DEVICE)
        scores = q @ k.transpose(1, 2) * 0.2
        scores = scores if mod is None else mod(scores, distance)
        keep = (distance >= 0) & (distance < (window or 10**9))
        scores = scores.masked_fill(~keep, float("-inf"))
        if sinks is not None:
            scores = torch.cat((scores, sinks.double()[:, None, None].expand(HEADS, n, 1)), -1)
        found.append((scores.softmax(-1)[..., :length] @ v).transpose(0, 1))
    return torch.cat(found)


class Vllm(unittest.TestCase):
    def setUp(self):
        luattn.vllm.register()
        self.addCleanup(luattn.vllm.register)

    def expect(self, step, o, **of_reference):
        want = reference(step, **of_reference)
        got = o[: step.tokens].double()
        limit = 2e-6 if DTYPE == torch.float32 else 2.0**-7  # a rounding of o, and of P
        self.assertLess(((got - want).norm() / want.norm()).item(), limit)
        rows = torch.tensor([step.slot(b, p) for b, (n, length) in enumerate(step.lengths) for p in range(length - n, length)])
        pages, at = rows // SIZE, rows % SIZE
        written = step.cache[pages.to(DEVICE), :, at.to(DEVICE)]
        self.assertTrue(torch.equal(written, torch.cat((step.k, step.v), -1)[: step.tokens]))

    def test_layers(self):
        """What a model asks of a layer: a cap, a window, sinks, slopes, all of them; in three orders of the cache's axes."""
        sinks, slopes = torch.randn(HEADS, device=DEVICE), [0.5, 0.25, 0.125, 0.0625]
        tilt = torch.tensor(slopes, device=DEVICE).double()[:, None, None]
        cases = [
            ({}, {}),
            ({"logits_soft_cap": 3.0}, {"mod": lambda s, d: 3 * torch.tanh(s / 3)}),
            ({"sliding_window": 8}, {"window": 8}),
            ({"sinks": sinks}, {"sinks": sinks}),
            ({"alibi_slopes": slopes}, {"mod": lambda s, d: s - tilt * d.abs()}),
            ({"sinks": sinks, "sliding_window": 20, "logits_soft_cap": 5.0}, {"sinks": sinks, "window": 20, "mod": lambda s, d: 5 * torch.tanh(s / 5)}),
        ]
        for of_layer, of_reference in cases:
            for order in ("LBHNC", "LBNHC", "LHBNC"):
                with self.subTest(sorted(of_layer), order=order):
                    step = Step(order=order)
                    self.expect(step, step.run(**of_layer), **of_reference)

    def test_specs(self):
        """Specs of one's own, aligned at the first or the last key, with inputs and scalars that are the layer's."""
        sinks = torch.randn(HEADS, device=DEVICE)
        capped = "return attention { scalars = { cap = 9.0 }, block_mask = %s, score_mod = function(s) return cap * tanh(s / cap) end }"
        for mask in ("causal()", "causal_bottom_right()"):
            with self.subTest(mask):
                luattn.vllm.register(capped % mask)
                step = Step()
                self.expect(step, step.run(logits_soft_cap=3.0), mod=lambda s, d: 3 * torch.tanh(s / 3))
        with open(f"{ROOT}/docs/vllm.md", encoding="utf-8") as file:
            luattn.vllm.register(re.search(r"```lua\n(.*?)```", file.read(), re.S)[1])
        step = Step()
        self.expect(step, step.run(logits_soft_cap=3.0, sliding_window=8), mod=lambda s, d: 3 * torch.tanh(s / 3), window=8)
        luattn.vllm.register(luattn.attention("attention_sink"))
        step = Step()
        self.expect(step, step.run(sinks=sinks), sinks=sinks)  # its window of 128 is longer than all
        table = torch.randn(HEADS, 64, device=DEVICE)
        biased = """return attention { inputs = { biases = { axes = {"h", "n"} } }, block_mask = causal(),
          score_mod = function(s, b, h, q_idx, kv_idx) return s + biases[{h, q_idx - kv_idx}] end }"""
        seen = []
        luattn.vllm.register(lambda layer: (seen.append(layer), (biased, {"biases": table}))[1])
        step = Step()
        self.expect(step, step.run(sliding_window=8), mod=lambda s, d: s + table.double()[:, d.clamp(0, 63)])
        self.assertEqual((seen[0].num_kv_heads, seen[0].sliding_window, seen[0].sinks), (HEADS_KV, 8, None))

    def test_shard(self):
        """Of two ranks that share the heads, the second one's spec sees the numbers of its own."""
        parallel = sys.modules["vllm.distributed.parallel_state"]
        model = types.SimpleNamespace(model_config=types.SimpleNamespace(get_total_num_kv_heads=lambda: 2 * HEADS_KV))
        named = {"model_parallel_is_initialized": True, "get_tensor_model_parallel_world_size": 2, "get_tensor_model_parallel_rank": 1}
        luattn.vllm.register("return attention { block_mask = causal(), score_mod = function(s, b, h) return s * (h + heads) end }")
        step = Step()
        with contextlib.ExitStack() as stack:
            for name, x in named.items():
                stack.enter_context(mock.patch.object(parallel, name, lambda x=x: x, create=True))
            stack.enter_context(mock.patch.object(sys.modules["vllm.config"], "get_current_vllm_config", lambda: model))
            self.expect(step, step.run(), mod=lambda s, d: s * torch.arange(3 * HEADS, 4 * HEADS, device=DEVICE)[:, None, None])

    def test_shapes(self):
        """More requests than vLLM's configuration has, as chunks of them are; a cache of one head, whose axis says an odd stride."""
        step = Step(lengths=((2, 9),) * 12)
        self.expect(step, step.run())
        from luattn.vllm._backend import _halves

        cache = torch.zeros(5, 1, SIZE, 2 * DIM).as_strided((5, 1, SIZE, 2 * DIM), (SIZE * 2 * DIM, 1, 2 * DIM, 1))
        for half, first in zip(_halves(cache, DIM), (0, DIM)):
            self.assertEqual((half.shape, half.storage_offset()), ((5, 1, SIZE, DIM), first))
            self.assertTrue(all(x % 8 == 0 for x in half.stride()[:3]))

    def test_decode(self):
        """Three steps of decode that write to one cache, and a run in which every slot is none, which writes nothing."""
        step = Step(lengths=((5, 5), (19, 19)), padding=0)
        step.run()
        for length in range(1, 4):
            new = Step(lengths=((1, 5 + length), (1, 19 + length)), seed=length)
            new.cache, new.table[:] = step.cache, 0
            new.table[:, :2] = step.table[:, :2]
            new.common.block_table_tensor.copy_(new.table)
            new.common.slot_mapping[:2] = torch.tensor([new.slot(b, n - 1) for b, (_, n) in enumerate(new.lengths)])
            self.expect(new, new.run())
        before = step.cache.clone()
        new.common.slot_mapping.fill_(-1)
        new.run()
        self.assertTrue(torch.equal(step.cache, before))

    def test_graph(self):
        """A step of decode as a CUDA graph: captured for the longest length, replayed after the runner wrote others."""
        if DEVICE == "cpu":
            self.skipTest("LUATTN_TEST_DEVICE=cuda runs it")
        step = Step(lengths=((1, 33), (1, 18), (1, 7), (1, 1)))
        step.common.max_seq_len = BLOCKS * SIZE
        o = step.run(logits_soft_cap=3.0, sinks=torch.zeros(HEADS, device=DEVICE))
        backend = AttentionBackendEnum["LUATTN"].get_class()
        builder = backend.get_builder_cls()(types.SimpleNamespace(block_size=SIZE), ["layer"], config(), torch.device(DEVICE))
        meta, graph = builder.build(0, step.common), torch.cuda.CUDAGraph()
        call = (None, step.q, step.k, step.v, step.cache, meta, o)
        with torch.no_grad():
            step.impl.forward(*call)
            with torch.cuda.graph(graph):
                step.impl.forward(*call)
        for shorter in (0, 1, 5):
            step.lengths = tuple((1, max(n - shorter, 1)) for _, n in ((1, 33), (1, 18), (1, 7), (1, 1)))
            step.common.seq_lens.copy_(torch.tensor([n for _, n in step.lengths]))
            step.common.slot_mapping[:4] = torch.tensor([step.slot(b, n - 1) for b, (_, n) in enumerate(step.lengths)])
            builder.build(0, step.common)
            o.zero_()
            graph.replay()
            self.expect(step, o, mod=lambda s, d: 3 * torch.tanh(s / 3), sinks=torch.zeros(HEADS, device=DEVICE))

    def refuses(self, words, run):
        with self.assertRaisesRegex(luattn.Error, words):
            run()

    def test_refusals(self):
        self.refuses("window .8., and the spec declares", lambda: self._with("causal", sliding_window=8))
        self.refuses("declares the scalar window, and the layer has none", lambda: self._with("return attention { scalars = { window = 9 } }"))
        self.refuses("'sinks' is missing: register a function", lambda: self._with("attention_sink"))
        self.refuses("returned 3, expected a spec", lambda: self._with(lambda layer: 3))
        self.refuses("spec: is 3", lambda: luattn.vllm.register(3))
        luattn.vllm.register()
        self.refuses("attn_type: is encoder_only", lambda: Step().run(attn_type=AttentionType.ENCODER_ONLY))
        self.refuses("kv_cache_dtype: is fp8", lambda: Step().run(kv_cache_dtype="fp8"))
        step = Step()
        step.common.causal = False
        self.refuses("causal: is not True", step.run)
        step = Step()
        step.cache = step.cache.double()
        self.refuses("kv_cache: is torch.float64", step.run)
        step = Step()
        step.run()
        self.refuses("output_scale", lambda: step.impl.forward(None, step.q, step.k, step.v, step.cache, step.meta, step.q, torch.ones(1)))
        self.assertTrue(torch.equal(step.impl.forward(None, step.q, None, None, step.cache, None, torch.ones(3)), torch.zeros(3)))

    def _with(self, spec, **of_layer):
        luattn.vllm.register(spec)
        Step().run(**of_layer)

    def test_plugin(self):
        """The entry point takes a spec from the environment, may be called again, and only warns where vLLM is another one."""
        with mock.patch.dict(os.environ, LUATTN_VLLM_SPEC="softmax_one"):
            luattn.vllm.plugin()
            luattn.vllm.plugin()
        self.assertEqual(Step(lengths=((1, 1),)).run().shape, (4, HEADS, DIM))
        code = "import sys; sys.modules['vllm'] = None; import luattn.vllm; luattn.vllm.plugin()"
        env = {**os.environ, "PYTHONPATH": f"{ROOT}/python"}
        run = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
        self.assertEqual(run.returncode, 0, run.stderr)
        self.assertIn("expected the interface of vLLM", run.stderr)

    @unittest.skipUnless(IS_REAL, "vllm is not installed")
    def test_layer(self):
        """vLLM's own attention layer, which finds the backend by its name, and its forward context."""
        import vllm.platforms
        from vllm.config import AttentionConfig, CacheConfig, DeviceConfig, VllmConfig, set_current_vllm_config
        from vllm.forward_context import set_forward_context
        from vllm.model_executor.layers.attention import Attention
        from vllm.platforms.cpu import CpuPlatform

        if DEVICE == "cpu":
            vllm.platforms.current_platform = CpuPlatform()
        step, name = Step(), "model.layers.0.attn"
        whole = VllmConfig(device_config=DeviceConfig(DEVICE), attention_config=AttentionConfig(backend="LUATTN"))
        backend, dtype = whole.attention_config.backend.get_class(), torch.get_default_dtype()
        torch.set_default_dtype(DTYPE)
        self.addCleanup(torch.set_default_dtype, dtype)
        with set_current_vllm_config(whole):
            of_layer = dict(cache_config=CacheConfig(block_size=SIZE), logits_soft_cap=3.0, per_layer_sliding_window=20, attn_backend=backend)
            layer = Attention(HEADS, DIM, 0.2, HEADS_KV, prefix=name, **of_layer)
            kept = layer.get_kv_cache_spec(whole)
            layer.kv_cache, builder = step.cache, backend.get_builder_cls()(kept, [name], whole, torch.device(DEVICE))
            context = set_forward_context({name: builder.build(0, step.common)}, whole, slot_mapping={name: step.common.slot_mapping})
            with torch.inference_mode(), context:
                o = layer(*(x.flatten(1) for x in (step.q, step.k, step.v)))
        self.expect(step, o.unflatten(-1, (HEADS, DIM)), mod=lambda s, d: 3 * torch.tanh(s / 3), window=20)

    def test_class(self):
        """What vLLM asks a class before it selects it."""
        backend = AttentionBackendEnum["LUATTN"].get_class()
        self.assertEqual((backend.get_name(), backend.supports_head_size(128), backend.supports_head_size(100)), ("LUATTN", True, False))
        if IS_REAL:
            from vllm.platforms.interface import DeviceCapability

            given = dict(head_size=64, dtype=torch.bfloat16, kv_cache_dtype="auto", block_size=16, use_mla=False, has_sink=True, use_sparse=False)
            given |= dict(use_mm_prefix=False, use_per_head_quant_scales=False, attn_type=AttentionType.DECODER, has_sliding_window=True)
            self.assertEqual(backend.validate_configuration(**given, device_capability=DeviceCapability(9, 0)), [])
            self.assertEqual(len(backend.validate_configuration(**given, device_capability=DeviceCapability(7, 5))), 1)


if __name__ == "__main__":
    unittest.main()
