"""Forward mode in torch: what is refused, and that no function of the package drops a tangent without a word."""

import unittest
from unittest import mock

from problems import ROOT, torch  # exits without torch, so first

import luattn
from luattn import _tangents, flash_attn, flex
from tangents_cases import VARIANT, Case, arguments, ours, rand
from torch.autograd import forward_ad


class Refusals(Case):
    def test_a_torch_without_levels(self):
        """What functorch keeps to itself and a version lacks, is refused there by name, and the other ways work."""
        q, k, v = (rand(1, 2, 5, 8) for _ in range(3))
        full = luattn.attention("return attention { }")
        transforms = torch.func.jvp(lambda q: full(q, k, v), (q,), (k,))
        with mock.patch.object(_tangents, "_LEVEL", None):
            for call in (
                lambda: torch.func.jvp(lambda q: full(q, k, v), (q,), (k,)),
                lambda: torch.func.grad(lambda q: full(q, k, v).sum())(q),
                lambda: torch.func.vjp(lambda q: full(q, k, v), q),
            ):
                with self.assertRaisesRegex(luattn.Unsupported, "has no torch.autograd.function._SingleLevelFunction"):
                    call()
            self.close(luattn.jvp(full, (q, k, v), (k, None, None)), transforms)
            with forward_ad.dual_level():
                self.close(forward_ad.unpack_dual(full(forward_ad.make_dual(q, k), k, v)), transforms)

    def test_words(self):
        q, k, v, bias, shift, cap = arguments()
        given = {"bias": bias, "shift": shift}
        ids = luattn.attention(
            "return attention { inputs = { ids = { axes = {'kv'}, dtype = 'i32' } }, "
            "block_mask = function(b, h, q, kv) return ids[kv] > 0 end }"
        )
        jvp = torch.func.jvp
        f = lambda q: ours(q, k, v, bias, shift, cap)[0]  # noqa: E731

        def thrice():
            leaf = q.clone().requires_grad_()
            first = torch.autograd.grad(f(leaf).square().sum(), leaf, create_graph=True)[0]
            second = torch.autograd.grad(first.square().sum(), leaf, create_graph=True)[0]
            torch.autograd.grad(second.square().sum(), leaf)

        def inside():
            leaf = q.clone().requires_grad_()
            with forward_ad.dual_level():
                u, du = forward_ad.unpack_dual(f(forward_ad.make_dual(leaf, q)))
                torch.autograd.grad((u * du).sum(), leaf)

        def undeclared():
            along = shift.clone().requires_grad_()
            luattn.jvp(VARIANT, (q, k, v), {"shift": along}, **given)

        for call, words in (
            (thrice, "there are no third derivatives"),
            (inside, "no tangents of gradients through tangents"),
            (undeclared, "the tangent of input 'shift' requires a gradient"),
            (lambda: jvp(lambda q: jvp(f, (q,), (q,))[1], (q,), (q,)), "take one derivative forwards"),
            (lambda: luattn.jvp(VARIANT, (q, k), (q, k, v), **given), r"primals: .*expected \(q, k, v\)"),
            (lambda: luattn.jvp(VARIANT, (q, k, v), (q, k), **given), "tangents: .*or a dict by name"),
            (lambda: luattn.jvp(VARIANT, (q, k, v), (k, None, None), **given),
             r"'q': has shape \(1, 2, 9, 8\), expected \(1, 4, 7, 8\)"),
            (lambda: luattn.jvp(VARIANT, (q, k, v), (q.float(), None, None), **given),
             "'q': has type torch.float32, expected torch.float64"),
            (lambda: luattn.jvp(VARIANT, (q, k, v), (q.to("meta"), None, None), **given), "'q': has device meta, expected cpu"),
            (lambda: luattn.jvp(VARIANT, (q, k, v), {"bios": q}, **given), "'bios': the call has no such argument"),
            (lambda: luattn.jvp(VARIANT, (q, k, v), (q.numpy(), None, None), **given),
             "'q': is a NumPy array of float64, expected a tensor of torch"),
            (lambda: luattn.jvp(VARIANT, (q, k, v), (1.0, None, None), **given), "'q': is 1.0, expected a tensor of torch"),
            (lambda: luattn.jvp(VARIANT, (q, k, v), {"cap": "x"}, **given), "'cap': is the string 'x', expected a number"),
            (lambda: luattn.jvp(VARIANT, (q, k, v), {"q_offset": 1.0}, q_offset=0, **given),
             "'q_offset': the call has no such argument"),
            (lambda: luattn.jvp(VARIANT, (q, k.numpy(), v), {"k": k}, **given),
             "k: is a NumPy array of float64: tangents are of tensors"),
            (lambda: luattn.jvp(VARIANT, (q, k, v), (q, None, None), q=k, **given), "q: is given twice"),
            (lambda: luattn.jvp(ids, (q, k, v), {"ids": torch.ones(9)}, ids=torch.ones(9, dtype=torch.int32)),
             "'ids': is of torch.int32"),
            (lambda: luattn.jvp(VARIANT, [t.numpy() for t in (q, k, v)], (None,) * 3, **given), "tangents are of tensors of torch"),
            (lambda: luattn.jvp(f, (q, k, v), (q, k, v)), "expected what luattn.attention returns"),
            (lambda: luattn.jvp(luattn.linear_attention("return linear_attention { }"), (q, k, v), (q, k, v)),
             "linear attention has no forward-mode derivative yet"),
            (lambda: torch.autograd.functional.hvp(lambda q: f(q).square().sum(), q, q),
             "in place of torch.autograd.functional.hvp, call vhp"),
            (lambda: jvp(lambda q: luattn.jvp(VARIANT, (q, k, v), (q, None, None), **given)[0], (q,), (q,)),
             "call the attention itself there"),
        ):
            with self.subTest(words), self.assertRaisesRegex(luattn.Error, words):
                call()


def flat(x):
    if isinstance(x, dict):
        return flat(list(x.values()))
    return [t for y in x for t in flat(y)] if isinstance(x, (tuple, list)) else [x]


class NoneIsDropped(Case):
    """Each function of the package with a tangent on each argument: a result has a tangent, or it raises."""

    def check(self, name, call, given):
        raised, carried = [], []
        for which, x in given.items():
            if not (isinstance(x, torch.Tensor) and x.is_floating_point()):
                continue
            with self.subTest(f"{name}, {which}"), forward_ad.dual_level():
                moved = {key: t.clone() if isinstance(t, torch.Tensor) else t for key, t in given.items()}
                moved[which] = forward_ad.make_dual(moved[which], torch.randn_like(x))
                try:
                    made = call(**moved)
                except (luattn.Error, RuntimeError, TypeError) as e:
                    raised.append((which, str(e)[:80]))
                    continue
                found = [t for t in flat(made) if isinstance(t, torch.Tensor)]
                self.assertTrue(any(forward_ad.unpack_dual(t).tangent is not None for t in found), "dropped without a word")
                carried.append(which)
        return raised, carried

    def test_attention(self):
        q, k, v, bias, shift, cap = arguments()
        given = {"q": q, "k": k, "v": v, "bias": bias, "shift": shift, "cap": cap, "scale": torch.tensor(0.5)}
        raised, carried = self.check("call", lambda **x: VARIANT(**x), given)
        self.assertEqual((raised, carried), ([], [*given]))
        self.check("return_lse", lambda **x: VARIANT(**x, return_lse=True), given)
        self.check("out", lambda **x: VARIANT(**x, out=torch.empty(1, 4, 7, 6, dtype=torch.float64)), given)
        raised, carried = self.check("return_state", lambda **x: VARIANT(**x, return_state=True), given)
        self.assertEqual(len(carried), 0)
        self.check("weights", VARIANT.weights, {**given, "scale": 0.5, "cap": cap})
        self.check("kwargs", lambda **x: VARIANT(**x, q_offset=3), given)
        with torch.no_grad():
            self.check("no_grad", lambda **x: VARIANT(**x), given)

    def test_methods(self):
        q, k, v, bias, shift, cap = arguments()
        o, lse = ours(q, k, v, bias, shift, cap)
        given = {"dout": o, "q": q, "k": k, "v": v, "o": o, "lse": lse, "dlse": lse, "bias": bias, "shift": shift, "cap": cap}
        self.check("gradients", lambda **x: VARIANT.gradients(**x), given)
        full = luattn.attention("return attention { }")
        _, _, state = full(q, k, v, return_state=True)
        outs = {"a": o, "b": o, "x": lse, "y": lse}
        for name, merge in (("merge", luattn.merge), ("Attention.merge", full.merge)):
            raised, carried = self.check(name, lambda a, b, x, y, merge=merge: merge([a, b], [x, y]), outs)
            self.assertEqual((raised, carried), ([], [*outs]))
        self.check("merge of states", lambda a, b, x, y, s: full.merge([a, b], [x, y], [s, s]), {**outs, "s": state})
        cache = {"k": rand(1, 2, 20, 8), "v": rand(1, 2, 20, 8), "new_k": rand(1, 2, 3, 8), "new_v": rand(1, 2, 3, 8)}
        used = torch.tensor([4], dtype=torch.int32)
        raised, carried = self.check("append", lambda **x: full.append(**x, seqused_k=used), cache)
        self.assertEqual(len(carried), 0)
        self.check("cache", lambda **x: full(**x, seqused_k=used), {"q": rand(1, 2, 3, 8), "k": cache["k"], "v": cache["v"]})

    def test_flash_attn(self):
        q, k, v = rand(2, 6, 4, 8), rand(2, 9, 2, 8), rand(2, 9, 2, 8)
        rows, keys = rand(12, 4, 8), rand(12, 2, 8)
        ends = torch.tensor([0, 5, 12], dtype=torch.int32)
        both = {"alibi_slopes": torch.rand(4), "s_aux": torch.randn(4)}
        packed = {"cu_seqlens_q": ends, "cu_seqlens_k": ends, "max_seqlen_q": 7, "max_seqlen_k": 7}
        used = torch.tensor([3, 5], dtype=torch.int32)
        cache = {"q": rand(2, 1, 4, 8), "k_cache": rand(2, 16, 2, 8), "v_cache": rand(2, 16, 2, 8), "k": rand(2, 1, 2, 8),
            "v": rand(2, 1, 2, 8), "cache_seqlens": used}
        rotary = {"rotary_cos": torch.rand(16, 4, dtype=torch.float64), "rotary_sin": torch.rand(16, 4, dtype=torch.float64)}
        varlen = {"query": rows, "key": keys, "value": keys, "cu_seq_q": ends, "cu_seq_k": ends, "max_q": 7, "max_k": 7,
            "enable_gqa": True}
        calls = {
            "flash_attn_func": {"q": q, "k": k, "v": v, **both, "softcap": 3.0},
            "flash_attn_kvpacked_func": {"q": q, "kv": rand(2, 9, 2, 2, 8), **both},
            "flash_attn_qkvpacked_func": {"qkv": rand(2, 9, 3, 4, 8), **both},
            "flash_attn_varlen_func": {"q": rows, "k": keys, "v": keys, **packed, **both},
            "flash_attn_varlen_kvpacked_func": {"q": rows, "kv": rand(12, 2, 2, 8), **packed, **both},
            "flash_attn_varlen_qkvpacked_func": {"qkv": rand(12, 3, 4, 8), "cu_seqlens": ends, "max_seqlen": 7, **both},
            "flash_attn_with_kvcache": {**cache, **rotary, **both, "causal": True},
            "varlen_attn": varlen,
            "varlen_attn_out": {"out": torch.empty_like(rows), **varlen},
        }
        self.assertEqual(sorted([*calls, "to_attention"]), sorted(flash_attn.__all__))  # which returns the tensors that it is given
        for name, given in calls.items():
            raised, carried = self.check(name, getattr(flash_attn, name), given)
            if "cache" not in name:
                self.assertTrue(carried, raised)
        self.check("softcap", lambda q, k, v, softcap: flash_attn.flash_attn_func(q, k, v, softcap=softcap),
            {"q": q, "k": k, "v": v, "softcap": torch.tensor(3.0)})
        self.check("S_dmask", lambda q, k, v: flash_attn.flash_attn_func(q, k, v, dropout_p=0.25, return_attn_probs=True),
            {"q": q, "k": k, "v": v})

    def test_flex(self):
        q, k, v = rand(1, 2, 6, 8), rand(1, 2, 6, 8), rand(1, 2, 6, 8)
        mask = flex.create_block_mask(lambda b, h, q, kv: q >= kv, None, None, 6, 6, device="cpu")

        def call(q, k, v, table, slope):
            return flex.flex_attention(q, k, v, lambda s, b, h, i, j: s * slope + table[h, i - j + 5], block_mask=mask)

        given = {"q": q, "k": k, "v": v, "table": rand(2, 11), "slope": torch.tensor(0.5, dtype=torch.float64)}
        raised, carried = self.check("flex_attention", call, given)
        self.assertEqual((raised, carried), ([], [*given]))

    def test_levels(self):
        """What is refused, is refused where a transform of torch.func is between the call and its tangent, and of batches of
        torch.vmap."""
        refused = "has no forward-mode derivative|softcap: "
        q, cap, one = rand(2, 6, 2, 8), torch.tensor(3.0), torch.ones(())
        used = torch.tensor([3, 4], dtype=torch.int32)
        linear, full = luattn.linear_attention("return linear_attention { }"), luattn.attention("return attention { }")
        rows = rand(2, 2, 6, 8)
        calls = {
            "softcap": (cap, lambda x: flash_attn.flash_attn_func(q, q, q, softcap=x)),
            "cache": (q[:, :1].clone(), lambda x: flash_attn.flash_attn_with_kvcache(x, q.clone(), q.clone(), cache_seqlens=used)),
            "state": (rows, lambda x: full(x, rows, rows, return_state=True)[0]),
            "linear": (q, lambda x: linear(x, q, q)),
        }
        for name, (x, call) in calls.items():
            two = torch.stack([x, x])
            between = {
                "vmap": (two, torch.vmap(call)),
                "vmap of vmap": (torch.stack([two, two]), torch.vmap(torch.vmap(call))),
                "grad": (x, torch.func.grad(lambda x: call(x).sum())),
                "vjp of another": (x, lambda x: torch.func.vjp(lambda z: z * call(x).sum(), one)[0]),
                "jvp of another": (x, lambda x: torch.func.jvp(lambda z: z * call(x).sum(), (one,), (one,))[0]),
                "vmap of another": (x, lambda x: torch.vmap(lambda z: z * call(x).sum())(torch.ones(2))),
            }
            for kind, (x, f) in between.items():
                with self.subTest(f"{name}, jvp of {kind}"), self.assertRaisesRegex(luattn.Error, refused):
                    torch.func.jvp(f, (x,), (torch.ones_like(x),))
                if kind != "jvp of another":  # torch has one level of forward mode beside those of torch.func
                    said = f"{name}, dual level around {kind}"
                    with self.subTest(said), forward_ad.dual_level(), self.assertRaisesRegex(luattn.Error, refused):
                        f(forward_ad.make_dual(x, torch.ones_like(x)))
            with self.subTest(f"{name}, vmap of jvp"), self.assertRaisesRegex(luattn.Error, refused):
                torch.vmap(lambda x: torch.func.jvp(call, (x,), (x,))[1])(two)

    def test_transformers(self):
        try:
            from luattn import transformers
        except ImportError:
            self.skipTest("transformers is not installed")
        module = torch.nn.Module()
        module.is_causal = True
        given = {"query": rand(1, 4, 6, 8), "key": rand(1, 2, 6, 8), "value": rand(1, 2, 6, 8), "s_aux": rand(4),
            "position_bias": rand(1, 4, 6, 6)}
        for names in (("query", "key", "value", "s_aux"), ("query", "key", "value", "position_bias")):
            raised, carried = self.check("transformers", lambda **x: transformers.attention(module, attention_mask=None, **x),
                {n: given[n] for n in names})
            self.assertIn("query", carried, raised)

    def test_parallel(self):
        """A group of one process."""
        import tempfile

        import torch.distributed as dist
        from luattn.parallel import ContextParallel, plan

        with tempfile.TemporaryDirectory() as folder:
            dist.init_process_group("gloo", init_method=f"file://{folder}/group", rank=0, world_size=1)
            causal = luattn.attention("return attention { block_mask = causal() }")
            local = ContextParallel(causal, None, plan(causal, 64, 1, heads=(2, 2), head_dim=8, dtype="float64"))
            q, k, v = (local.shard(rand(1, 2, 64, 8)) for _ in range(3))
            raised, carried = self.check("ContextParallel", lambda **x: local(**x), {"q": q, "k": k, "v": v})
            self.assertEqual(len(raised), 3)
            self.check("shard", local.shard, {"tensor": rand(1, 2, 64, 8)})
            self.assertEqual(len(self.check("unshard", local.unshard, {"tensor": q})[0]), 1)
            dist.destroy_process_group()

    def test_natten(self):
        from luattn import natten

        line, plane, space = rand(1, 6, 2, 4), rand(1, 5, 6, 2, 4), rand(1, 3, 4, 5, 2, 4)
        for name, x in (("na1d", line), ("na2d", plane), ("na3d", space), ("neighborhood_attention_generic", plane)):
            given = {"query": x, "key": x.clone(), "value": x.clone()}
            raised, carried = self.check(name, lambda name=name, **t: getattr(natten, name)(**t, kernel_size=3), given)
            self.assertEqual((raised, carried), ([], [*given]))
            self.check(f"{name} beside others", lambda name=name, **t: getattr(natten, name)(**t, kernel_size=3),
                {**given, "additional_keys": rand(1, 3, 2, 4), "additional_values": rand(1, 3, 2, 4)})
        self.check("rpb", lambda **t: natten.na2d(**t, kernel_size=3),
            {"query": plane, "key": plane.clone(), "value": plane.clone(), "rpb": rand(2, 5, 5)})
        self.check("attention", natten.attention, {"query": line, "key": line.clone(), "value": line.clone()})
        lse = rand(1, 6, 2)
        self.check("merge_attentions", lambda a, b, x, y: natten.merge_attentions([a, b], [x, y]),
            {"a": line, "b": line.clone(), "x": lse, "y": lse.clone()})
        for axes, x in (("1d", rand(1, 2, 6, 4)), ("2d", rand(1, 2, 5, 6, 4)), ("3d", rand(1, 2, 3, 4, 5, 4))):
            qk, av = getattr(natten, f"na{axes}_qk"), getattr(natten, f"na{axes}_av")
            self.check(f"na{axes}_qk", lambda qk=qk, **t: qk(**t, kernel_size=3), {"query": x, "key": x.clone()})
            self.check(f"na{axes}_av", lambda av=av, **t: av(**t, kernel_size=3), {"attn": qk(x, x, 3), "value": x.clone()})
        self.check("module", natten.NeighborhoodAttention2D(8, 2, 3).double(), {"x": rand(1, 5, 6, 8)})

    def test_fla(self):
        try:
            from luattn import fla
        except ImportError:
            self.skipTest("there is no luattn.fla")
        q, k, v = rand(1, 6, 2, 4), rand(1, 6, 2, 4), rand(1, 6, 2, 3)
        g, beta, a = -torch.rand(1, 6, 2).double(), torch.rand(1, 6, 2).double(), -torch.rand(1, 6, 2, 4).double()
        first = rand(1, 2, 4, 3)
        for name, more in (
            ("chunk_linear_attn", {}), ("chunk_retention", {}), ("chunk_gla", {"g": a}), ("chunk_delta_rule", {"beta": beta}),
            ("chunk_gated_delta_rule", {"g": g, "beta": beta, "initial_state": first}), ("chunk_kda", {"g": a, "beta": beta}),
        ):  # fmt: skip
            self.check(name, getattr(fla, name), {"q": q, "k": k, "v": v, **more})
        x, dt, A, B = rand(1, 6, 2, 3), torch.rand(1, 6, 2).double(), -torch.rand(2).double(), rand(1, 6, 1, 4)
        self.check("mamba_chunk_scan_combined", lambda **t: fla.mamba_chunk_scan_combined(**t, chunk_size=2),
            {"x": x, "dt": dt, "A": A, "B": B, "C": B.clone(), "z": x.clone()})

    def test_linear_attention(self):
        linear = luattn.linear_attention(f"{ROOT}/tests/specs/linear/kda.lua")
        given = {"q": rand(2, 5, 1, 4), "k": rand(2, 5, 1, 4), "v": rand(2, 5, 2, 3), "A_log": rand(2), "a": rand(2, 5, 2, 4),
            "beta": rand(2, 5, 2), "dt_bias": rand(2, 4)}
        given |= {"bound": torch.tensor(-5.0, dtype=torch.float64), "initial_state": rand(2, 2, 3, 4)}
        raised, carried = self.check("linear_attention", lambda **x: linear(**x, output_final_state=True, state_layout="vk"), given)
        self.assertEqual((len(raised), carried), (len(given), []))

    def test_numpy_beside_torch(self):
        """A number of torch beside arrays of NumPy."""
        q, k, v, bias, shift, cap = arguments()
        arrays = {name: t.numpy() for name, t in {"q": q, "k": k, "v": v, "bias": bias, "shift": shift}.items()}
        raised, _ = self.check("numpy", lambda cap: VARIANT(**arrays, cap=cap), {"cap": cap})
        self.assertEqual(len(raised), 1)


if __name__ == "__main__":
    unittest.main()
