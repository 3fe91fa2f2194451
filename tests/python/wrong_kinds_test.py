"""wrong_kinds_test.py: every public function, called with something of a wrong kind in the place of each of its arguments, names the argument
in an error of luattn's own; numbers of every kind are the same number."""

import fractions
import itertools
import unittest
import warnings

from with_torch import torch  # exits without torch, so first

import numpy as np

import luattn
from luattn import flash_attn, flex

warnings.filterwarnings("ignore", module="torch")  # nested and sparse tensors are prototypes

SPEC = """return attention {
  inputs = { bias = { axes = {"h"}, dtype = "any", grad = true }, shift = { axes = {}, dtype = "i32" } }, scalars = { slope = 0.5 },
  score_mod = function(s, b, h, i, j) return s + bias[h] + slope * (i + shift - j) end, block_mask = causal(),
}"""
attention = luattn.attention(SPEC)
plain = luattn.attention("return attention {}")
drops = luattn.attention("return attention { online_func = dropout(0.25) }")


def rand(*shape):
    return torch.randn(*shape)


def int32(*numbers):
    return torch.tensor(numbers, dtype=torch.int32)


def as_numpy(given):
    return {name: x.numpy() if isinstance(x, torch.Tensor) else x for name, x in given.items()}


HEADS_FIRST = {"q": rand(2, 2, 6, 8), "k": rand(2, 2, 6, 8), "v": rand(2, 2, 6, 8)}
LENGTHS_FIRST = {name: t.transpose(1, 2).contiguous() for name, t in HEADS_FIRST.items()}
PACKED = {name: rand(6, 2, 8) for name in "qkv"}
CU = {"cu_seqlens_q": int32(0, 2, 6), "cu_seqlens_k": int32(0, 3, 6), "max_seqlen_q": 4, "max_seqlen_k": 3}
OPTIONS = {"scale": 0.5, "return_lse": False, "return_state": False, "layout": "bhsd", "keys_modified": False}
PARTS = {"q_offset": 1, "kv_offset": 2, "q_len": 9, "kv_len": 12, "head_offset": 1, "heads": 4, "heads_kv": 4}
OWN = {"bias": rand(2), "shift": 1, "slope": 0.25}
FLASH = {
    "dropout_p": 0.0, "softmax_scale": 0.5, "causal": True, "window_size": (2, 1), "softcap": 3.0, "alibi_slopes": rand(2).abs(), "deterministic": False,
    "return_attn_probs": False,
}  # fmt: skip
with torch.no_grad():
    STATES = [plain(**HEADS_FIRST, return_state=True) for _ in "ab"]
    OUTS, LSES, STATE = (list(x) for x in zip(*STATES))
    MERGED = dict(zip(("o", "lse", "saved"), plain.merge(OUTS, LSES, STATE, return_saved=True)))


def merge_of(call):
    """Its lists by their first element."""
    return lambda out, lse, **given: call([out, OUTS[1]], [lse, LSES[1]], **given)


def cache(**given):
    given["k_cache"], given["v_cache"] = (x.clone() if isinstance(x, torch.Tensor) else x for x in (given["k_cache"], given["v_cache"]))
    return flash_attn.flash_attn_with_kvcache(**given)


def append(**given):
    return plain.append(**{name: x.copy() if type(x) is np.ndarray else x for name, x in given.items()})


def a_score_mod(score, b, h, q_idx, kv_idx):
    return score * 2


CACHE = {"k_cache": rand(2, 8, 2, 8), "v_cache": rand(2, 8, 2, 8)}
PAGES = {"kv_indptr": int32(0, 2, 3), "kv_indices": int32(0, 1, 2), "kv_last_page_len": int32(3, 4)}
APPEND = {"k": rand(2, 2, 8, 8), "v": rand(2, 2, 8, 8), "new_k": rand(2, 2, 1, 8), "new_v": rand(2, 2, 1, 8), "seqused_k": int32(3, 4)}
# A function, and arguments of the right kinds.
CALLS = {
    "attention(spec)": (luattn.attention, {"spec": SPEC}),
    "attention": (attention, {**HEADS_FIRST, **OPTIONS, **OWN}),
    "attention, NumPy": (attention, as_numpy({**HEADS_FIRST, **OPTIONS, **OWN})),
    "attention, a part": (attention, {**HEADS_FIRST, **PARTS, **OWN}),
    "attention, a part, NumPy": (attention, as_numpy({**HEADS_FIRST, **PARTS, **OWN})),
    "attention, packed": (plain, {**PACKED, **CU, "seqused_q": int32(2, 3), "seqused_k": int32(2, 1)}),
    "attention, packed, NumPy": (plain, as_numpy({**PACKED, **CU, "seqused_q": int32(2, 3), "seqused_k": int32(2, 1)})),
    "attention, pages": (plain, {"q": rand(2, 2, 1, 8), "k": rand(3, 2, 4, 8), "v": rand(3, 2, 4, 8), "block_table": int32(0, 1, 2, 0).reshape(2, 2),
                                 "seqused_k": int32(5, 3), "max_seqlen_k": 8}),
    "attention, dropout": (drops, {**HEADS_FIRST, "seed": 5}),
    "attention, dropout, NumPy": (drops, as_numpy({**HEADS_FIRST, "seed": 5})),
    "attention, batch": (plain, {**HEADS_FIRST, "batch": luattn.Batch()}),
    "explain": (attention.explain, {**HEADS_FIRST, "bias": rand(2), "shift": 1, "backward": False, "layout": "bhsd", "arch": "sm_90a"}),
    "weights": (attention.weights, {**HEADS_FIRST, "bias": rand(2), "shift": 1, "layout": "bhsd"}),
    "plan": (attention.plan, {**HEADS_FIRST, "bias": rand(2), "shift": 1, "backward": False, "layout": "bhsd"}),
    "mask": (attention.mask, {"q_len": 8, "kv_len": 8, "batch": 0, "head": 1, "tile": 4, "bias": rand(2), "shift": 1}),
    "append": (append, {**APPEND, "max_seqlen_k": 8, "layout": "bhsd", "keys_modified": False}),
    "append, NumPy": (append, as_numpy({**APPEND, "max_seqlen_k": 8, "layout": "bhsd", "keys_modified": False})),
    "Attention.merge": (merge_of(plain.merge), {"out": OUTS[0], "lse": LSES[0], "layout": "bhsd", "dtype": torch.float32}),
    "Attention.merge of states": (lambda state, **given: plain.merge(OUTS, LSES, [state, STATE[1]], **given),
                                  {"state": STATE[0], "layout": "bhsd", "return_state": True, "return_saved": False}),
    "gradients": (plain.gradients, {"dout": rand(2, 2, 6, 8), **HEADS_FIRST, **MERGED, "dlse": rand(2, 2, 6), "scale": 0.5, "layout": "bhsd"}),
    "merge": (merge_of(luattn.merge), {"out": OUTS[0], "lse": LSES[0], "layout": "bhsd", "dtype": torch.float32}),
    "merge, NumPy": (lambda out, **given: luattn.merge([out, OUTS[1].numpy()], [x.numpy() for x in LSES], **given), {"out": OUTS[0].numpy(), "dtype": np.float32}),
    "merge of lists": (luattn.merge, {"outs": OUTS, "lses": LSES}),
    "page_table": (luattn.page_table, {**PAGES, "page_size": 4, "max_pages": 3}),
    "page_table, NumPy": (luattn.page_table, as_numpy({**PAGES, "page_size": 4, "max_pages": 3})),
    "Batch.prepare": (lambda **given: luattn.Batch().prepare(**given), {"attention": attention, **HEADS_FIRST, "layout": "bhsd", "bias": rand(2), "shift": 1}),
    "Batch.prepare of pages": (lambda **given: luattn.Batch().prepare(plain, **given),
                               {"q": rand(2, 2, 1, 8), "k": rand(2, 2, 8, 8), "seqused_k": int32(3, 4), "max_seqlen_k": 8, "keys_modified": False}),
    "flash_attn_func": (flash_attn.flash_attn_func, {**LENGTHS_FIRST, **FLASH}),
    "flash_attn_qkvpacked_func": (flash_attn.flash_attn_qkvpacked_func, {"qkv": rand(2, 6, 3, 2, 8), **FLASH}),
    "flash_attn_kvpacked_func": (flash_attn.flash_attn_kvpacked_func, {"q": rand(2, 6, 2, 8), "kv": rand(2, 6, 2, 2, 8), **FLASH}),
    "flash_attn_varlen_func": (flash_attn.flash_attn_varlen_func, {**PACKED, **CU, **FLASH}),
    "flash_attn_varlen_func, pages": (flash_attn.flash_attn_varlen_func, {
        "q": rand(6, 2, 8), "k": rand(3, 4, 2, 8), "v": rand(3, 4, 2, 8), **CU, "max_seqlen_k": 8, "block_table": int32(0, 1, 2, 0).reshape(2, 2)}),
    "flash_attn_varlen_qkvpacked_func": (flash_attn.flash_attn_varlen_qkvpacked_func, {"qkv": rand(6, 3, 2, 8), "cu_seqlens": int32(0, 2, 6), "max_seqlen": 4, **FLASH}),
    "flash_attn_varlen_kvpacked_func": (flash_attn.flash_attn_varlen_kvpacked_func, {"q": rand(6, 2, 8), "kv": rand(6, 2, 2, 8), **CU, **FLASH}),
    "flash_attn_with_kvcache": (cache, {
        "q": rand(2, 1, 2, 8), **CACHE, "k": rand(2, 1, 2, 8), "v": rand(2, 1, 2, 8), "rotary_cos": rand(8, 4), "rotary_sin": rand(8, 4), "cache_seqlens": int32(3, 4),
        "cache_batch_idx": int32(1, 0), "cache_leftpad": int32(0, 1), "softmax_scale": 0.5, "causal": True, "window_size": (4, 0), "softcap": 2.0,
        "rotary_interleaved": True, "alibi_slopes": rand(2).abs(), "num_splits": 1, "return_softmax_lse": False, "attention_chunk": 0}),
    "flash_attn_with_kvcache, packed": (cache, {
        "q": rand(3, 2, 8), **CACHE, "k": rand(3, 2, 8), "v": rand(3, 2, 8), "cache_seqlens": 3, "cu_seqlens_q": int32(0, 1, 3), "max_seqlen_q": 2,
        "cu_seqlens_k_new": int32(0, 1, 3)}),
    "flash_attn_with_kvcache, pages": (cache, {
        "q": rand(2, 1, 2, 8), "k_cache": rand(3, 4, 2, 8), "v_cache": rand(3, 4, 2, 8), "cache_seqlens": int32(3, 4), "block_table": int32(0, 1, 2, 0).reshape(2, 2)}),
    "varlen_attn": (flash_attn.varlen_attn, {
        "query": PACKED["q"], "key": PACKED["k"], "value": PACKED["v"], "cu_seq_q": CU["cu_seqlens_q"], "cu_seq_k": CU["cu_seqlens_k"], "max_q": 4, "max_k": 3,
        "return_aux": None, "scale": 0.5, "window_size": (-1, 0), "enable_gqa": False, "seqused_k": int32(2, 1), "block_table": None, "num_splits": None}),
    "flex_attention": (flex.flex_attention, {
        "query": HEADS_FIRST["q"], "key": HEADS_FIRST["k"], "value": HEADS_FIRST["v"], "score_mod": a_score_mod,
        "block_mask": flex.create_block_mask(lambda b, h, i, j: i >= j, None, None, 6, 6, device="cpu"), "scale": 0.5, "enable_gqa": False, "return_lse": False,
        "return_aux": None}),
    "create_block_mask": (flex.create_block_mask, {"mask_mod": flex.noop_mask, "B": 2, "H": None, "Q_LEN": 6, "KV_LEN": 6, "device": "cpu", "BLOCK_SIZE": 128}),
    "to_attention": (flex.to_attention, {
        "score_mod": a_score_mod, "block_mask": flex.create_block_mask(lambda b, h, i, j: i >= j, None, None, 6, 6, device="cpu"), "dtype": torch.float32, "device": "cpu"}),
    "to_lua": (flex.to_lua, {"mod": a_score_mod, "dtype": torch.float32, "device": "cpu"}),
}  # fmt: skip

FLAGS = {"causal", "deterministic", "return_attn_probs", "return_lse", "return_state", "return_saved", "keys_modified", "backward", "enable_gqa", "return_softmax_lse",
         "rotary_interleaved"}  # fmt: skip
REALS = {"scale", "softmax_scale", "softcap", "dropout_p", "slope"}
INTEGERS = {"max_seqlen_q", "max_seqlen_k", "max_seqlen", "max_q", "max_k", "q_len", "kv_len", "head_offset", "heads", "heads_kv", "q_offset", "kv_offset", "page_size",
            "max_pages", "num_splits", "attention_chunk", "tile", "batch", "head", "Q_LEN", "KV_LEN", "B", "H", "BLOCK_SIZE", "seed", "cache_seqlens", "shift"}  # fmt: skip
# Which may be missing.
OPTIONAL = {"arch", "scale", "softmax_scale", "q_offset", "kv_offset", "q_len", "kv_len", "head_offset", "heads", "heads_kv", "max_seqlen_q", "max_seqlen_k", "seqused_q", "seqused_k",
            "block_table", "alibi_slopes", "num_splits", "return_aux", "block_mask", "score_mod", "B", "H", "dtype", "dlse", "max_pages", "cache_seqlens", "cache_leftpad",
            "cache_batch_idx", "rotary_cos", "rotary_sin", "seed", "batch", "device", "outs", "states", "cu_seqlens_q", "cu_seqlens_k", "cu_seqlens_k_new", "k", "v", "saved"}  # fmt: skip


class Units(np.ndarray):
    pass


def wrong_kinds():
    """Things, by what they are."""
    t = rand(2, 2, 6, 8)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ragged = torch.nested.nested_tensor([rand(2, 8), rand(3, 8)])
        jagged = torch.nested.nested_tensor([rand(2, 8), rand(3, 8)], layout=torch.jagged)
        compressed = torch.eye(6).to_sparse_csr()
    return {
        "None": None, "a list": [1.0, 2.0], "an empty list": [], "a tuple": (1, 2), "a list of tensors": [t, t], "a string": "causal", "a digit": "1", "bytes": b"1", "a dict": {},
        "a set": {1}, "an object": object(), "a function": print, "a type": int, "a bool": True, "False": False, "a complex number": 1j, "nan": float("nan"), "a float": 2.5,
        "a whole float": 1.0, "an int": 1, "a NumPy bool": np.bool_(True), "a NumPy string": np.str_("1"), "a NumPy date": np.datetime64("2020-01-01"),
        "a NumPy float": np.float32(2.5), "a NumPy int": np.int64(1), "a NumPy complex": np.complex64(1j), "an array of 0 axes": np.array(1), "a tensor of 0 axes": torch.tensor(1),
        "a complex tensor of 0 axes": torch.tensor(1j), "a bool tensor of 0 axes": torch.tensor(True), "a masked array": np.ma.masked_array(t.numpy(), False),
        "a masked number": np.ma.masked_array(1.0, True), "an array of objects": np.array([object()]), "an array of strings": np.array(["1"]), "a matrix": np.matrix([[1.0]]),
        "an array of another class": t.numpy().view(Units), "records": np.zeros(2, [("a", "f4")]), "a meta tensor": t.to("meta"), "a meta tensor of 0 axes": torch.tensor(1).to("meta"), "a sparse tensor": t.to_sparse(), "rows in CSR": compressed, "a nested tensor": ragged,
        "a jagged tensor": jagged, "a quantized tensor": torch.quantize_per_tensor(t, 0.1, 0, torch.qint8), "a complex tensor": t.to(torch.complex64), "a fraction": fractions.Fraction(1, 2),
        "an array": t.numpy(), "a tensor": t, "a dtype": torch.float32, "a device": torch.device("cpu"), "a slice": slice(1), "Ellipsis": ..., "a generator": (x for x in "ab"),
    }  # fmt: skip


INTS = {"an int", "a NumPy int", "an array of 0 axes", "a tensor of 0 axes"}
NUMBERS = INTS | {"a float", "a whole float", "a NumPy float", "a fraction"}


def may_be(name, argument, kind, thing, given):
    """Whether a function may take it. What a value may be is not looked at here."""
    if kind == "None":
        return argument in OPTIONAL and not (argument in ("k", "v") and "k_cache" not in given and "attention" not in given and "seqused_k" not in given)
    own = type(given[argument])
    if argument in FLAGS:
        return kind in ("a bool", "False", "a NumPy bool", "a bool tensor of 0 axes") or kind in INTS
    if argument in REALS:
        return kind in NUMBERS
    if argument in ("bias", "shift") and kind in ("an array", "a tensor", "an array of 0 axes", "a tensor of 0 axes", "a bool tensor of 0 axes"):
        return True  # what the library says of their axes and types
    if argument in INTEGERS:
        tuples = {"seed": ("a tuple",), "BLOCK_SIZE": ("a tuple",), "shift": ("a whole float",)}.get(argument, ())
        return kind in INTS or kind in tuples
    if argument == "window_size":
        return kind == "a tuple"
    if argument == "dtype":
        return kind == "a dtype" or (kind == "a type" and own is type)
    if argument == "device":
        return kind == "a device" or kind in INTS
    if argument in ("score_mod", "mask_mod", "mod"):
        return kind == "a function"
    if argument == "outs":
        return kind == "a list of tensors"
    if argument == "spec":
        return kind in ("a string", "a digit", "a NumPy string")  # paths of files that are not there
    if own in (torch.Tensor, np.ndarray):
        return kind == ("an array" if own is np.ndarray else "a tensor")
    return False


# What else messages call an argument of which they know a part.
SYNONYMS = {"qkv": "qkv|q|k|v", "kv": "kv|k|v", "query": "query|q", "key": "key|k", "value": "value|v", "cu_seqlens": "cu_seqlens|cu_seqlens_q",
            "cu_seq_q": "cu_seq_q|cu_seqlens_q", "cu_seq_k": "cu_seq_k|cu_seqlens_k|seqused_k", "cu_seqlens_k": "cu_seqlens_k|seqused_k", "new_k": "new_k|q"}  # fmt: skip


class WrongKinds(unittest.TestCase):
    def test_right_kinds(self):
        for name, (call, given) in CALLS.items():
            with self.subTest(name):
                call(**given)

    def test_each_argument(self):
        for name, (call, given) in CALLS.items():
            for argument in given:
                for kind, thing in wrong_kinds().items():
                    with self.subTest(name, argument=argument, kind=kind):
                        self.check(name, call, given, argument, kind, thing)

    def check(self, name, call, given, argument, kind, thing):
        try:
            call(**{**given, argument: thing})
        except (luattn.Error, FileNotFoundError) as e:
            if not may_be(name, argument, kind, thing, given):
                self.assertRegex(str(e), rf"\b({SYNONYMS.get(argument, argument)})s?\b", "the argument has no name in the message")
            return
        except BaseException as e:
            self.fail(f"{type(e).__name__}: {e}")
        self.assertTrue(may_be(name, argument, kind, thing, given), "accepted")


def kinds_of(x):
    """The same number, in other kinds."""
    if type(x) is bool:
        return [np.bool_(x), int(x), np.int64(x), torch.tensor(x), np.array(x)]
    if type(x) is int:
        return [np.int64(x), np.int32(x), np.uint8(x), np.array(x), torch.tensor(x), torch.tensor(x, dtype=torch.int32)]
    return [np.float64(x), np.float32(x), np.array(x), torch.tensor(x), torch.tensor(x, dtype=torch.float64), fractions.Fraction(x)]


def arrays_in(found):
    return [np.asarray(t) for t in (found if isinstance(found, (tuple, list)) else [found]) if isinstance(t, (np.ndarray, torch.Tensor))]


class Numbers(unittest.TestCase):
    def test_each_option(self):
        for name, (call, given) in CALLS.items():
            if name == "Attention.merge of states":
                continue  # whose results are as many as flags say
            for argument, x in given.items():
                if type(x) not in (bool, int, float) or argument == "shift":
                    continue
                want = arrays_in(call(**given))
                for other in kinds_of(x):
                    with self.subTest(name, argument=argument, kind=type(other), dtype=getattr(other, "dtype", None)):
                        got = arrays_in(call(**{**given, argument: other}))
                        self.assertEqual(len(got), len(want))
                        for a, b in zip(got, want):
                            np.testing.assert_array_equal(a, b)

    def test_offsets_of_jax(self):
        try:
            import jax.numpy as jnp
        except ImportError:
            self.skipTest("JAX is not installed")
        call, given = CALLS["attention, a part"]
        torch.testing.assert_close(call(**{**given, "q_offset": jnp.array(1)}), call(**given))
        with self.assertRaisesRegex(luattn.InvalidError, "q: is a jax.*expected a tensor of torch or a NumPy array; pass torch.from_dlpack"):
            plain(jnp.zeros((1, 1, 4, 8)), HEADS_FIRST["k"], HEADS_FIRST["v"])

    def test_arrays_of_other_libraries(self):
        """What has __dlpack__, as CuPy's and JAX's arrays: the message has the line that takes it."""

        class Array:
            shape, dtype = (1, 2, 4, 8), np.dtype("float32")

            def __dlpack__(self, **_):
                return t.__dlpack__()

            def __dlpack_device__(self):
                return t.__dlpack_device__()

        t, biased = rand(1, 2, 4, 8), luattn.attention("return attention { inputs = { bias = { axes = {'h'} } }, score_mod = function(s, b, h) return s + bias[h] end }")
        expected = r"a tensor of torch or a NumPy array( or None)?"
        for call, message in (
            (lambda: plain(t, t, Array()), f"spec: v: is a .*Array, expected {expected}; pass torch.from_dlpack.v., which copies nothing"),
            (lambda: plain(Array(), Array(), Array()), f"spec: q: is a .*Array, expected {expected}; pass torch.from_dlpack.q."),
            (lambda: plain(t, t, t, cu_seqlens_q=Array()), f"spec: cu_seqlens_q: is a .*Array, expected {expected}; pass torch.from_dlpack.cu_seqlens_q."),
            (lambda: plain(t, t, t, q_offset=Array()), r"spec: q_offset: is a .*Array, expected an integer, .*; pass torch.from_dlpack.q_offset."),
            (lambda: biased(t, t, t, bias=Array()), f"spec: input 'bias': is a .*Array, expected {expected}; pass torch.from_dlpack.bias."),
            (lambda: flash_attn.flash_attn_func(t, Array(), t), r"flash_attn_func: k: is a .*Array, expected a tensor of torch; pass torch.from_dlpack.k."),
            (lambda: plain(t.numpy().view(Units), t.numpy(), t.numpy()), r"spec: q: is a .*Units, expected .*; pass numpy.asarray.q."),
        ):
            with self.subTest(message), self.assertRaisesRegex(luattn.InvalidError, message):
                call()
        torch.testing.assert_close(plain(t, t, torch.from_dlpack(Array())), plain(t, t, t))

    def test_messages(self):
        for call, message in (
            (lambda: plain([1], 2, 3), "spec: q: is .1., expected a tensor of torch or a NumPy array$"),
            (lambda: plain(**{**HEADS_FIRST, "k": HEADS_FIRST["k"].numpy()}), "spec: k: is a NumPy array of float32, and q a tensor of float32: convert one of them"),
            (lambda: plain(**{**HEADS_FIRST, "v": HEADS_FIRST["v"].to_sparse()}), r"spec: v: is a sparse tensor of float32, expected .*; pass .to_dense\(\)"),
            (lambda: plain(**HEADS_FIRST, scale=torch.tensor(1j)), "spec: scale: is a tensor of complex64 without axes, expected a number, or a tensor of one"),
            (lambda: plain(**HEADS_FIRST, q_offset=2.0), r"spec: q_offset: is 2.0, expected an integer, or int32 \[batch\] or None"),
            (lambda: flash_attn.flash_attn_func(**LENGTHS_FIRST, dropout_p=False), "flash_attn_func: dropout_p: is False, expected a number"),
            (lambda: flash_attn.flash_attn_func(**LENGTHS_FIRST, causal="no"), "flash_attn_func: causal: is the string 'no', expected True or False"),
            (lambda: flex.flex_attention(*HEADS_FIRST.values(), block_mask="causal"), "flex_attention: block_mask: is the string 'causal', expected one of"),
        ):
            with self.subTest(message), self.assertRaisesRegex(luattn.InvalidError, message):
                call()


if __name__ == "__main__":
    unittest.main()
