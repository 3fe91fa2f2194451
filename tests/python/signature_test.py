"""signature_test.py: calls like one before give what the first way gives, are refused as before, keep no tensor, and share no frame at one time."""

import contextlib
import ctypes
import gc
import threading
import unittest
import weakref
from unittest import mock

from with_torch import torch  # exits without torch, so first

import luattn
from luattn import _call, _library, _signature, _tensors, flash_attn
from luattn import _capi as capi
from luattn.batch import Splits

SPEC = """return attention {
  inputs = { bias = { axes = {"h"}, dtype = "any", grad = true } }, scalars = { slope = 0.5 },
  score_mod = function(s, b, h, i, j) return s + bias[h] + slope * (i - j) end, block_mask = causal(),
}"""
causal = luattn.attention("return attention { block_mask = causal() }")


def int32(*numbers):
    return torch.tensor(numbers, dtype=torch.int32)


def qkv(heads_kv=4, q_len=6, kv_len=6, swapped=False):
    shapes = (2, 4, q_len, 16), (2, heads_kv, kv_len, 16), (2, heads_kv, kv_len, 16)
    return [torch.randn(b, n, h, d) if swapped else torch.randn(b, h, n, d) for b, h, n, d in shapes]


def cache_call(**options):
    """flash_attn_with_kvcache over caches that it may write to."""
    q, new_k, new_v = torch.randn(2, 1, 4, 16), torch.randn(2, 1, 2, 16), torch.randn(2, 1, 2, 16)
    k_cache, v_cache = (torch.randn(8, 16, 2, 16) for _ in "kv")
    used, table = int32(*torch.randint(1, 12, (2,))), torch.randperm(8).to(torch.int32).reshape(2, 4)
    pages = {"block_table": table} if options.pop("paged", False) else {}
    if options.pop("rows", False):
        pages |= {"k": new_k, "v": new_v}
    if options.pop("rotary", False):
        pages |= {"rotary_cos": torch.randn(64, 8), "rotary_sin": torch.randn(64, 8)}
    for name, make in options.items():
        pages[name] = make() if callable(make) else make
    o, lse = flash_attn.flash_attn_with_kvcache(q, k_cache, v_cache, cache_seqlens=used, return_softmax_lse=True, **pages)
    return o, lse, k_cache, v_cache


def both(call, *tensors):
    wants = [t.requires_grad_() for t in tensors]
    o = call(*wants)
    return o, *torch.autograd.grad(o, wants, torch.randn_like(o))


OF_SPEC = luattn.attention(SPEC)
CALLS = {
    "attention": lambda: causal(*qkv(), return_lse=True),
    "bshd": lambda: causal(*qkv(2, swapped=True), layout="bshd"),
    "inputs": lambda: OF_SPEC(*qkv(), bias=torch.randn(4), slope=float(torch.randn(()))),
    "a part": lambda: causal(*qkv(), q_offset=int32(*torch.randint(0, 5, (2,))), return_lse=True),
    "packed": lambda: causal(*(torch.randn(6, 4, 16) for _ in "qkv"), cu_seqlens_q=int32(0, 2, 6), cu_seqlens_k=int32(0, 3, 6)),
    "a cache": lambda: causal(*qkv(2, 1, 32), seqused_k=int32(*torch.randint(1, 32, (2,)))),
    "a batch": lambda: causal(*qkv(), batch=luattn.Batch()),
    "gradients": lambda: both(causal, *qkv()),
    "gradients, bshd": lambda: both(lambda *t: causal(*t, layout="bshd"), *qkv(2, swapped=True)),
    "gradients of inputs": lambda: both(lambda q, k, v, bias: OF_SPEC(q, k, v, bias=bias, slope=0.25), *qkv(), torch.randn(4)),
    "flash_attn": lambda: both(lambda *t: flash_attn.flash_attn_func(*t, causal=True, softcap=3.0), *qkv(2, swapped=True)),
    "kvcache": cache_call,
    "kvcache in pages": lambda: cache_call(paged=True, causal=True),
    "kvcache, new rows": lambda: cache_call(rows=True),
    "kvcache, new rows in pages": lambda: cache_call(paged=True, rows=True, causal=True, window_size=(5, 0)),
    "kvcache, rotary": lambda: cache_call(paged=True, rows=True, rotary=True, causal=True),
    "kvcache, slopes": lambda: cache_call(alibi_slopes=lambda: torch.rand(4), cache_leftpad=lambda: int32(0, 1)),
}  # fmt: skip


@contextlib.contextmanager
def launches():
    """Notes how each call of a signature ended."""
    found, real = [], _signature.Signature.run

    def run(*args):
        made = real(*args)
        found.append(made is not None)
        return made

    with mock.patch.object(_signature.Signature, "run", run):
        yield found


def tensors_in(found):
    return [t for t in (found if isinstance(found, tuple) else (found,)) if t is not None]


class Signatures(unittest.TestCase):
    def test_beside_the_general_way(self):
        for name, call in CALLS.items():
            with self.subTest(name):
                with launches() as found:
                    results = []
                    for seed in range(4):
                        torch.manual_seed(seed)
                        results.append(tensors_in(call()))
                self.assertGreaterEqual(found.count(True), 3)
                self.assertNotIn(False, found)
                with mock.patch.object(_signature, "find", lambda *args: (None, None)):
                    for seed, result in enumerate(results):
                        torch.manual_seed(seed)
                        for a, b in zip(result, tensors_in(call()), strict=True):
                            self.assertEqual((a.shape, a.stride(), a.dtype), (b.shape, b.stride(), b.dtype))
                            self.assertTrue(torch.equal(a, b))

    def test_arguments_at_one_address(self):
        attention = luattn.attention("return attention { block_mask = causal()  }")
        x, (q, k, v) = torch.randn(2, 4, 6, 16), qkv()
        attention(x, x, x)
        self.assertTrue(torch.equal(attention(q, k, v), causal(q, k, v)))
        self.assertEqual(len(attention._spec.signatures), 1)

    def test_what_is_refused_after_a_call(self):
        q, k, v = qkv()
        causal(q, k, v)
        caches = [torch.zeros(2, 16, 2, 16) for _ in "kv"]
        row = torch.randn(2, 1, 2, 16)

        def kvcache(used, q=torch.randn(2, 1, 4, 16), **given):
            return flash_attn.flash_attn_with_kvcache(q, *caches, cache_seqlens=used, **given)

        kvcache(int32(3, 4)), kvcache(int32(3, 4), k=row, v=row.clone()), kvcache(int32(3, 4), num_splits=1)
        for call, message in (
            (lambda: causal(q, k.to(torch.bfloat16), v), "k: .*bfloat16|k: has dtype"),
            (lambda: causal(q, k[:, :, :, ::2], v), "k: "),
            (lambda: causal(q, k.to("meta"), v), "k: is on meta"),
            (lambda: causal(q, k, v.to_sparse()), "v: is a sparse tensor"),
            (lambda: causal(q, k, v, scale=True), "scale: is True"),
            (lambda: causal(q, k, v, layout="sbhd"), "layout: is 'sbhd'"),
            (lambda: kvcache(int32(3, 17)), "cache_seqlens: has 17"),
            (lambda: kvcache(int32(-1, 3)), "cache_seqlens: has -1"),
            (lambda: kvcache(int32(3, 16), k=row, v=row.clone()), "cache_seqlens: has 17 with 1 new rows"),
            (lambda: kvcache(int32(3, 4), num_splits=True), "num_splits: is True"),
            (lambda: kvcache(int32(3, 4), window_size=(-1, False)), "window_size: is .-1, False."),
            (lambda: kvcache(int32(3, 4).long()), "cache_seqlens: is torch.int64"),
        ):
            with self.subTest(message), self.assertRaisesRegex(luattn.Error, message):
                call()

    def test_what_prepare_refuses_after_a_call(self):
        batch, (q, k, _) = luattn.Batch(), qkv()
        for _ in range(2):
            batch.prepare(causal, q, k)
        for other in (k.to("meta"), k.to_sparse(), k.to(torch.complex64), k.numpy()):
            with self.subTest(other=type(other)), self.assertRaisesRegex(luattn.Error, "k: is "):
                batch.prepare(causal, q, other)

    def test_what_stands_between(self):
        """A mode, a subclass and a lazy negation after a plain call of the same shapes."""
        q, k, v = qkv()
        want = causal(q, k, v)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            self.assertIs(causal(q, k, v).dtype, torch.bfloat16)

        class Own(torch.Tensor):
            pass

        self.assertIsInstance(causal(q.as_subclass(Own), k, v), Own)
        self.assertTrue(torch.equal(causal(torch._neg_view(-q), k, v), want))
        self.assertTrue(torch.equal(torch.vmap(causal)(*(t[None] for t in (q, k, v)))[0], want))
        with torch.no_grad():
            self.assertFalse(causal(q.requires_grad_(), k, v).requires_grad)
        self.assertTrue(causal(q, k, v).requires_grad)
        with torch.inference_mode():
            self.assertTrue(torch.equal(causal(q, k, v), want))

    def test_another_scalar_is_no_other_signature(self):
        attention = luattn.attention(SPEC + " ")
        for i in range(5):
            attention(*qkv(), bias=torch.randn(4), slope=0.1 * i)
        self.assertEqual(len(attention._spec.signatures), 1)

    def test_a_bounded_number(self):
        attention = luattn.attention("return attention { }")
        with mock.patch.object(_signature, "_MOST", 4):
            for n in range(1, 9):
                attention(*(torch.randn(1, 1, n, 8) for _ in "qkv"))
        self.assertEqual(len(attention._spec.signatures), 4)


class Lifetimes(unittest.TestCase):
    def test_addresses(self):
        """Each launch has those of tensors that are there, and after it nothing keeps them."""
        alive, real, seen = [], _call.Frame.try_run, []

        def try_run(frame, engine, stream):
            there = {t.data_ptr() for t in gc.get_objects() if type(t) is torch.Tensor and t.layout is torch.strided}
            seen.append(set(frame.pointers().values()) <= there)
            return real(frame, engine, stream)

        for name, call in CALLS.items():
            call()
            with self.subTest(name), mock.patch.object(_call.Frame, "try_run", try_run):
                alive.clear()
                for t in tensors_in(call()):
                    alive.append(weakref.ref(t))
                del t
                self.assertTrue(seen and all(seen))
                gc.collect()
                self.assertEqual([ref() for ref in alive if ref() is not None], [])

    def test_arguments_are_not_kept(self):
        q, k, v = qkv()
        causal(q, k, v), causal(q, k, v)
        refs = [weakref.ref(t) for t in (q, k, v)]
        del q, k, v
        self.assertEqual([ref() for ref in refs], [None] * 3)

    def test_a_spec_goes_with_its_last_user(self):
        attention = luattn.attention("return attention { score_mod = function(s) return s + 54321 end }")
        q, k, v = (t.requires_grad_() for t in qkv())
        for _ in range(2):
            attention(q, k, v).sum().backward()
            attention(q.detach(), k, v)
        ref = weakref.ref(attention._spec)
        del attention
        self.assertIsNone(ref())

    def test_threads(self):
        wrong, start = [], threading.Barrier(8)

        def work(seed):
            tensors = [torch.full_like(t, seed + 1.0) for t in qkv()]
            start.wait()
            for _ in range(200):
                o = causal(*tensors)
                if not torch.equal(o, tensors[2]):
                    wrong.append(seed)

        threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        self.assertEqual(wrong, [])

    def test_frames_in_use_and_calls_that_are_refused(self):
        attention, (q, k, v) = luattn.attention("return attention {   }"), qkv()
        want = attention(q, k, v)
        (known,) = attention._spec.signatures.values()
        frame = known.frames.pop()  # as another thread's call has it
        self.assertTrue(torch.equal(attention(q, k, v), want))
        self.assertEqual(len(known.frames), 1)
        known.frames.append(frame)
        with mock.patch.object(_call.Frame, "try_run", lambda *args: False):
            self.assertTrue(torch.equal(attention(q, k, v), want))
        self.assertEqual([*attention._spec.signatures.values()], [None])
        self.assertTrue(torch.equal(attention(q, k, v), want))

    def test_a_batch_with_and_without_a_list(self):
        """A signature whose first call shared what a luattn.Batch has: others open a batch of their own, and no frames pile up."""
        attention, batch = luattn.attention("return attention { block_mask = causal()    }"), luattn.Batch()
        q, k, v = qkv(2, 1, 32)
        given = {"seqused_k": int32(5, 20)}
        want = attention(q, k, v, **given)
        handle = ctypes.c_void_p()
        used = capi.DLTensor()
        _tensors.fill(given["seqused_k"], ctypes.addressof(used))
        options = capi.BatchOptions(struct_size=ctypes.sizeof(capi.BatchOptions), seqused_k=ctypes.addressof(used))
        _library.call("luattn_batch_open", ctypes.byref(options), ctypes.byref(handle))
        made = Splits(handle.value, None, given)
        for has_list in (True, False, False, True, False):
            batch._splits = {attention._spec: made} if has_list else {}
            self.assertTrue(torch.equal(attention(q, k, v, **given, batch=batch), want))
        *_, known = attention._spec.signatures.values()
        self.assertEqual((len(known.frames), known.opens_batch), (1, True))

    def test_a_batch_of_the_call_is_closed(self):
        opened, closed, lib = [], [], _call.lib
        counting = mock.Mock(wraps=lib)
        counting.luattn_batch_open = lambda *args: (opened.append(1), lib.luattn_batch_open(*args))[1]
        counting.luattn_batch_close = lambda *args: (closed.append(1), lib.luattn_batch_close(*args))[1]
        with mock.patch.object(_call, "lib", counting):
            for name in ("a cache", "kvcache, rotary", "a part"):
                for _ in range(3):
                    CALLS[name]()
        self.assertEqual(len(opened), len(closed))


if __name__ == "__main__":
    unittest.main()
