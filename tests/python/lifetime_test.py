"""lifetime_test.py: what a call points to lives as long as the call; specs are freed after their last user; objects are copied by their text."""

import contextlib
import copy
import gc
import os
import pickle
import resource
import subprocess
import sys
import threading
import unittest
import weakref
from unittest import mock

from with_torch import ROOT, torch  # exits without torch, so first

import luattn
from luattn import _call, _library, _spec, _tensors, _torch_merge
from luattn import _capi as capi
from luattn.engine import engine_of
from luattn.flash_attn import flash_attn_func, flash_attn_with_kvcache

CAUSAL = "return attention { block_mask = causal() }"
causal = luattn.attention(CAUSAL)


class Watched:
    """The library, each of whose calls finds alive what was filled in for this operation."""

    def __init__(self, fill, inner):
        self._fill, self._inner, self.seen, self.gone = fill, inner, [], []

    def fill(self, tensor, at):
        self.seen.append(weakref.ref(tensor))
        return self._fill(tensor, at)

    def __getattr__(self, name):
        f = getattr(self._inner, name)

        def run(*args):
            self.gone += [f"{name}: {i}" for i, ref in enumerate(self.seen) if ref() is None]
            return f(*args)

        return run


class Pointers(unittest.TestCase):
    @contextlib.contextmanager
    def watched(self):
        watch = Watched(_tensors.fill, _library.lib)
        with contextlib.ExitStack() as stack:
            for where in (_call, _library):
                stack.enter_context(mock.patch.object(where, "lib", watch))
            for where in (_tensors, _torch_merge):
                stack.enter_context(mock.patch.object(where, "fill", watch.fill))
            yield watch
        self.assertTrue(watch.seen)
        self.assertEqual(watch.gone, [])

    def test_lists_of_blocks(self):
        """Copies of what kernels cannot read as it lies: the engine on the CPU stands for a GPU's."""
        q, k, v = (torch.randn(2, 2, n, 32)[..., ::2] for n in (1, 2048, 2048))
        used, batch, attention = torch.tensor([5, 9], dtype=torch.int32), luattn.Batch(), luattn.attention(CAUSAL + " ")
        given = {"seqused_k": used}
        on_cpu = {"place": lambda q: (0, None), "engine_for": lambda index, given: engine_of(capi.CPU)}
        with mock.patch.multiple(_tensors, **on_cpu):
            with self.watched():
                _tensors.prepare_splits(batch, attention._spec, q, k, v, [], [], given)
            with self.watched():
                _tensors.prepare_mask(batch, attention._spec, q, k, [], [], v)

    def test_calls(self):
        q, k, v = (torch.randn(2, 4, 8, 16, requires_grad=True)[..., ::2] for _ in "qkv")
        attention = luattn.attention(CAUSAL + "  ")
        k_cache, v_cache = (torch.zeros(2, 4, 16, 8) for _ in "kv")
        with torch.no_grad():
            parts = [attention(q, k, v, return_state=True) for _ in range(2)]
        o = attention(q, k, v)
        plain, used = tuple(t.detach() for t in (q, k, v)), torch.zeros(2, dtype=torch.int32)
        for call in (
            lambda: attention(q, k, v),
            o.sum().backward,
            lambda: attention(*plain, q_offset=torch.tensor([1, 2], dtype=torch.int32)),
            lambda: attention.plan(*plain, layout="bshd"),
            lambda: attention.append(k_cache, v_cache, *plain[1:], seqused_k=used),
            lambda: flash_attn_func(*plain, 0.5, return_attn_probs=True),
            lambda: luattn.merge([*plain[:2]], [torch.zeros(2, 4, 8), torch.zeros(2, 4, 8)]),
            lambda: attention.merge(*zip(*parts)),
            lambda: flash_attn_with_kvcache(*plain, cache_seqlens=3),
        ):
            with self.watched():
                call()

    def test_a_frame_keeps_nothing_of_a_call(self):
        q = torch.randn(1, 1, 4, 8)
        ref = weakref.ref(q)
        causal(q, q, q)
        del q
        self.assertIsNone(ref())


class Specs(unittest.TestCase):
    def test_freed_with_the_last_user(self):
        freed = []
        with mock.patch.object(_spec, "lib", Watched(None, _library.lib)) as lib:
            lib.luattn_spec_free = lambda pointer: (freed.append(pointer), _library.lib.luattn_spec_free(pointer))
            a = luattn.attention("return attention { score_mod = function(s) return s + 12345 end }")
            pointer, ref = a._spec.pointer, weakref.ref(a._spec)
            q = torch.randn(1, 1, 4, 8, requires_grad=True)
            o = a(q, q, q)
            del a
            self.assertIsNotNone(ref())  # backward needs it
            o.sum().backward()
            del o
            self.assertIsNone(ref())
            luattn.attention("return attention { score_mod = function(s) return s + 12346 end }")
            self.assertIn(pointer, freed)

    def test_not_freed_while_a_graph_is_captured(self):
        """On a GPU that mocks stand for: by this thread, by another one on a stream of its own, and by one that begins while this one waits."""
        current = []  # the stack of streams

        class Stream:
            is_capturing = False

        @contextlib.contextmanager
        def stream(s):
            current.append(s)
            yield
            current.pop()

        def synchronize(device):
            waited.append(device)
            other.is_capturing = other.is_capturing or begins

        mine, other = Stream(), Stream()
        current.append(mine)
        cuda = mock.Mock(Stream=Stream, stream=stream, synchronize=synchronize, is_initialized=lambda: True)
        cuda.is_current_stream_capturing = lambda: current[-1].is_capturing
        with mock.patch.dict(sys.modules, torch=mock.Mock(cuda=cuda)):
            for mine.is_capturing, other.is_capturing, begins, is_free, waits in (
                (False, False, False, True, True), (True, False, False, False, False), (False, True, False, False, False), (False, False, True, False, True),
            ):  # fmt: skip
                waited = []
                self.assertEqual(_spec._has_finished(3), is_free)
                self.assertEqual(waited, [3] * waits)

    def test_parts_before_the_whole(self):
        freed = []
        with mock.patch.object(_spec, "lib", Watched(None, _library.lib)) as lib:
            lib.luattn_spec_free = lambda pointer: (freed.append(pointer), _library.lib.luattn_spec_free(pointer))
            a = luattn.attention("return attention { score_mod = function(s) return s + 12347 end, online_func = softmax_one }")
            freed.clear()  # what other tests have left
            pointers = [a._spec.parts().pointer, a._spec.pointer]
            parts = a._spec.parts()
            del a
            gc.collect()
            luattn.attention("return attention { score_mod = function(s) return s + 12348 end }")
            self.assertNotIn(pointers[1], freed)
            del parts
            luattn.attention("return attention { score_mod = function(s) return s + 12349 end }")
            self.assertEqual([p for p in freed if p in pointers], pointers)

    def test_memory(self):
        q = torch.randn(1, 1, 4, 8)

        def use(i):
            luattn.attention(f"return attention {{ score_mod = function(s) return s + {i} end }}")(q, q, q, scale=-1.0)

        for i in range(300, 350):
            use(i)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        for i in range(1000, 1150):
            use(i)
        grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
        self.assertLess(grown, 20)  # 300 that stayed would be 75

    def test_ops_have_the_text_alone(self):
        text = "return attention { score_mod = function(s) return s + 54321 end }"
        q = torch.randn(1, 1, 4, 8)
        first = torch.ops.luattn.forward(text, q, q, q, [], [], None, 0.0)[0]
        spec = _spec.spec_of(text)
        gc.collect()
        torch.testing.assert_close(torch.ops.luattn.forward(spec.line, q, q, q, [], [], None, 0.0)[0], first)
        pointer = spec.pointer
        del spec
        self.assertEqual(_spec.spec_of(text).pointer, pointer)  # not loaded anew for each call
        with mock.patch.object(_spec, "_MOST_IN_GRAPHS", 1):
            torch.ops.luattn.forward(text + " ", q, q, q, [], [], None, 0.0)
        self.assertEqual([*_spec._in_graphs], [text + " "])


class Copies(unittest.TestCase):
    def setUp(self):
        self.q = torch.randn(1, 2, 4, 8)

    def test_of_an_attention(self):
        want = causal(self.q, self.q, self.q)
        layer = torch.nn.Module()
        layer.attention, layer.batch = causal, luattn.Batch()
        for twin in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
            torch.testing.assert_close(twin.attention(self.q, self.q, self.q, batch=twin.batch), want)
            self.assertIs(twin.attention._spec, causal._spec)
            self.assertIsNot(twin.batch, layer.batch)
            self.assertNotEqual(int(twin.batch.token), int(layer.batch.token))
        self.assertIs(copy.deepcopy(causal._spec), causal._spec)

    def test_in_another_process(self):
        code = "import pickle, sys, torch; a, q = pickle.loads(sys.stdin.buffer.read()); print(float(a(q, q, q).sum())); print(a)"
        for attention in (causal, luattn.attention(f"{ROOT}/examples/causal.lua")):
            data = pickle.dumps((attention, self.q))
            made = subprocess.run([sys.executable, "-c", code], input=data, capture_output=True, env={**os.environ, "PYTHONPATH": f"{ROOT}/python"})
            self.assertEqual(made.returncode, 0, made.stderr.decode())
            value, name = made.stdout.decode().splitlines()
            self.assertAlmostEqual(float(value), float(attention(self.q, self.q, self.q).sum()), places=4)
            self.assertEqual(name, repr(attention))

    def test_threads(self):
        results = []

        def work():
            results.append(copy.deepcopy(causal)(self.q, self.q, self.q))

        threads = [threading.Thread(target=work) for _ in range(8)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        for o in results:
            torch.testing.assert_close(o, causal(self.q, self.q, self.q))
        self.assertEqual(len(results), 8)

    def test_under_another_default_device(self):
        drops = luattn.attention("return attention { scalars = { a = 1.0 }, online_func = dropout(0.5), score_mod = function(s) return a * s end }")
        want = drops(self.q, self.q, self.q, seed=3, a=2.0)
        with torch.device("meta"):
            batch = luattn.Batch()
            self.assertEqual(batch.token.device.type, "cpu")
            torch.testing.assert_close(drops(self.q, self.q, self.q, seed=3, a=2.0, batch=batch), want)
        lengths = torch.zeros(2, dtype=torch.int32, device="meta")
        with self.assertRaisesRegex(luattn.InvalidError, "cu_seqlens_q: is on meta, and q on cpu"):
            torch.ops.luattn.forward(CAUSAL, *[self.q[0]] * 3, [], [], None, 0.0, cu_seqlens_q=lengths, cu_seqlens_k=lengths)
        with torch.device("meta"):
            other = drops(self.q, self.q, self.q, seed=(3, 0), a=torch.tensor(2.0, device="cpu"))
        torch.testing.assert_close(other, want)


class Callbacks(unittest.TestCase):
    def test_what_they_raise_is_raised_by_the_call(self):
        def log(user, line):
            raise ValueError(line.decode())

        callback = capi.LOG(_library.guarded(log))
        q = torch.randn(1, 1, 4, 8)
        for interrupted in (lambda: causal(q, q, q), lambda: causal.mask(4, 4), lambda: causal.plan(q, q, q)):
            callback(None, b"first")
            callback(None, b"second")
            with self.assertRaisesRegex(ValueError, "second") as caught:
                interrupted()
            self.assertEqual(str(caught.exception.__context__), "first")
            interrupted()  # told once

    def test_beside_an_error_of_the_library(self):
        def interrupt(user, line):
            raise KeyboardInterrupt

        capi.LOG(_library.guarded(interrupt))(None, b"")
        with self.assertRaises(KeyboardInterrupt) as caught:
            luattn.attention("return attention { block_mask = 5 }")
        self.assertIsInstance(caught.exception.__context__, luattn.SpecError)

    def test_each_thread_has_its_own(self):
        def fail(user, line):
            raise ValueError("of the thread")

        callback = capi.LOG(_library.guarded(fail))
        thread = threading.Thread(target=lambda: callback(None, b""))
        thread.start()
        thread.join()
        causal.mask(4, 4)
        _library.thrown.clear()


if __name__ == "__main__":
    unittest.main()
