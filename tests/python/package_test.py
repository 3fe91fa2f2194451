"""package_test.py: what the package is without torch. NumPy's part is left out where there is none."""

import ctypes
import glob
import os
import pickle
import re
import subprocess
import sys
import tempfile
import threading
import traceback
import unittest
from xml.etree import ElementTree

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, f"{ROOT}/python")
import luattn  # noqa: E402
from luattn import _capi as capi  # noqa: E402
from luattn._library import call, lib  # noqa: E402
from luattn._spec import InputInfo  # noqa: E402

try:
    import numpy as np
except ImportError:
    np = None

# ctypes struct: C struct. A name that Python reserves has a _ at its end.
STRUCTS = {
    capi.DLTensor: "DLTensor",
    capi.Error: "luattn_error",
    capi.Input: "luattn_input",
    capi.Scalar: "luattn_scalar",
    capi.Args: "luattn_args",
    capi.Tangents: "luattn_tangents",
    capi.LinearArgs: "luattn_linear_args",
    capi.BatchOptions: "luattn_batch_options",
    capi.EngineOptions: "luattn_engine_options",
    capi.InputInfo: "luattn_input_info",
    capi.SpecInfo: "luattn_spec_info",
    capi.Request: "luattn_request",
    capi.Call: "luattn_call",
    capi.DeviceInfo: "luattn_device_info",
    capi.MaskPicture: "luattn_mask_picture",
    capi.Tiles: "luattn_tiles",
    capi.BoxPair: "luattn_box_pair",
    capi.Target: "luattn_target",
    capi.BoxPair: "luattn_box_pair",
    capi.CompileReport: "luattn_compile_report",
    capi.AppendArgs: "luattn_append_args",
    capi.Part: "luattn_part",
    capi.MaskPlaces: "luattn_mask_places",
    capi.MergeArgs: "luattn_merge_args",
    capi.NaWindow: "luattn_na_window",
    capi.NaQkArgs: "luattn_na_qk_args",
    capi.NaAvArgs: "luattn_na_av_args",
    capi.PageLists: "luattn_page_lists",
    capi.MaskCounts: "luattn_mask_counts",
    capi.Random: "luattn_random",
    capi.ParallelRates: "luattn_parallel_rates",
    capi.ParallelLayers: "luattn_parallel_layers",
    capi.ParallelProblem: "luattn_parallel_problem",
    capi.ParallelCandidate: "luattn_parallel_candidate",
    capi.ParallelLevels: "luattn_parallel_levels",
    capi.ParallelPlan: "luattn_parallel_plan",
}
PARTS = (capi.DLDevice, capi.DLDataType)  # of DLTensor


def headers_without_comments():
    text = ""
    for path in sorted(glob.glob(f"{ROOT}/include/luattn/*.h")):
        with open(path) as file:
            text += re.sub(r"/\*.*?\*/", "", file.read(), flags=re.S)
    return text


def example(name):
    return f"{ROOT}/examples/{name}.lua"


class Engines(unittest.TestCase):
    def test_one_for_all_that_ask(self):
        """What prepare compiles, calls find, and what tune forgets, they ask for again."""
        from luattn.engine import engine_of

        self.assertEqual(engine_of(capi.CPU), engine_of(capi.CPU, False))
        self.assertEqual(engine_of(capi.CPU), engine_of(device=capi.CPU, deterministic=False, family=0))
        self.assertNotEqual(engine_of(capi.CPU), engine_of(capi.CPU, True))


class Layout(unittest.TestCase):
    def test_every_struct_is_compared(self):
        structs = {x for x in vars(capi).values() if isinstance(x, type) and issubclass(x, ctypes.Structure) and x is not ctypes.Structure}
        self.assertEqual(structs - set(PARTS), set(STRUCTS))

    def test_structs_are_those_of_the_headers(self):
        lines = ["#include <stddef.h>"]
        lines += [f"#include <luattn/{header}.h>" for header in ("linear", "merge", "natten", "pages", "parallel")]
        for struct, name in STRUCTS.items():
            lines.append(f'_Static_assert(sizeof({name}) == {ctypes.sizeof(struct)}, "{name}");')
            for field, *_ in struct._fields_:
                at = getattr(struct, field).offset
                member = field.rstrip("_")
                lines.append(f'_Static_assert(offsetof({name}, {member}) == {at}, "{name}.{field}");')
            # A member that ctypes lacks may lie in the padding, where the size does not tell.
            last = re.search(r"(\w+)(\[\w+\])?;\s*\}\s*" + name + ";", headers_without_comments())
            if name != "DLTensor":
                self.assertEqual(last[1], struct._fields_[-1][0].rstrip("_"), name)
        for i, name in enumerate(("F64", "F32", "BF16", "F16", "I32", "BOOL", "I64", "I16", "U8", "ANY")):
            lines.append(f'_Static_assert(LUATTN_INPUT_{name} == {i}, "{name}");')
        for name in ("CPU", "FORWARD", "BACKWARD", "WANT_DQ", "WANT_DK", "WANT_DV", "WANT_INPUTS", "WANT_SCALARS", "WANT_ALL", "LONG",
                     "DECODE_TILE", "DECODE_MANY"):
            lines.append(f'_Static_assert(LUATTN_{name} == {getattr(capi, name)}, "{name}");')
        for name in ("PARAMETER_MASKS", "PARAMETER_OF_SCORES", "PARAMETER_OF_ROWS", "MASK_BY_BATCH", "MASK_BY_HEAD"):
            lines.append(f'_Static_assert(LUATTN_{name} == {getattr(capi, name)}, "{name}");')
        limits = {"TILE": capi.TILE, "MAX_RANKS": capi.MAX_RANKS, "MAX_CHUNKS": capi.MAX_CHUNKS}
        lines += [f'_Static_assert(LUATTN_PARALLEL_{name} == {x}, "{name}");' for name, x in limits.items()]
        lines.append(f'_Static_assert(LUATTN_PARTITION_BY_TIME == {len(capi.PARTITIONS) - 1} && LUATTN_SCHEDULE_GATHERED == {len(capi.SCHEDULES) - 1}, "");')
        lines.append(f'_Static_assert(LUATTN_MERGE_MAX == {capi.MERGE_MAX} && LUATTN_SHORT == {capi.SHORT} && LUATTN_SHORT_MAX == {capi.SHORT_MAX}, "");')
        for layout, number in capi.STATE_LAYOUTS.items():
            lines.append(f'_Static_assert(LUATTN_STATE_{layout.upper()} == {number} && LUATTN_FORM_LINEAR == {capi.FORM_LINEAR}, "");')
        with tempfile.NamedTemporaryFile("w", suffix=".c") as file:
            file.write("\n".join(lines) + "\n")
            file.flush()
            cc = [os.environ.get("CC", "cc"), "-std=c11", "-fsyntax-only", f"-I{ROOT}/include", file.name]
            ran = subprocess.run(cc, capture_output=True, text=True)
        self.assertEqual(ran.returncode, 0, ran.stderr)


class Loading(unittest.TestCase):
    def test_import_loads_neither_torch_nor_numpy_nor_cuda(self):
        code = (
            "import sys, luattn; luattn.attention('return attention {}').mask(64, 64);"
            "maps = open('/proc/self/maps').read();"
            "print([x for x in ('torch', 'numpy') if x in sys.modules], 'libcuda' in maps, 'nvrtc' in maps)"
        )
        env = dict(os.environ, PYTHONPATH=f"{ROOT}/python")
        ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env)
        self.assertEqual(ran.stdout, "[] False False\n", ran.stderr)

    @unittest.skipUnless(np, "without NumPy")
    def test_prepare_takes_a_type_by_any_name(self):
        for dtype in ("float16", np.dtype("float16"), np.float16):
            try:
                luattn.prepare([], dtype, 64)
            except luattn.CudaError:  # without a GPU, once the type is known
                continue

    def test_version(self):
        self.assertEqual(lib.luattn_version().decode(), luattn.__version__)

    def test_a_library_that_is_not_there(self):
        env = dict(os.environ, PYTHONPATH=f"{ROOT}/python", LUATTN_LIBRARY="/nowhere.so")
        ran = subprocess.run([sys.executable, "-c", "import luattn"], capture_output=True, text=True, env=env)
        self.assertIn("ImportError: luattn: cannot load its library: /nowhere.so", ran.stderr)
        self.assertIn("set LUATTN_LIBRARY=", ran.stderr)

    def test_path_and_text(self):
        with open(example("gemma2"), encoding="utf-8") as file:
            text = file.read()
        for source in (example("gemma2"), text):
            gemma2 = luattn.attention(source)
            self.assertEqual((gemma2.name, gemma2.scalars, gemma2.inputs), ("gemma2", {"cap": 50.0}, {}))
        t5 = luattn.attention(example("t5_relative_bias"))
        self.assertEqual(repr(t5), "<luattn.Attention t5_relative_bias(q, k, v, bias)>")
        self.assertEqual(t5.inputs["bias"], InputInfo("bias", ("h", "32"), "float32", True))


class Errors(unittest.TestCase):
    def test_a_spec_error_keeps_its_line(self):
        with self.assertRaises(luattn.SpecError) as caught:
            luattn.attention("return attention {\n  score_mod = function(s, b, h)\n    return s + x[h] end }")
        self.assertEqual((caught.exception.file, caught.exception.line), ("spec", 3))
        self.assertIsInstance(caught.exception, ValueError)
        with tempfile.NamedTemporaryFile("w", suffix=".lua") as file:
            file.write("return attention { score_mods = 1 }")
            file.flush()
            with self.assertRaises(luattn.SpecError) as caught:
                luattn.attention(file.name)
        self.assertEqual((caught.exception.file, caught.exception.line), (file.name, 1))
        self.assertIn("did you mean 'score_mod'?", str(caught.exception))

    def test_exceptions_are_public(self):
        """They print as luattn's, and go to other processes."""
        from luattn import errors

        found = {x for x in vars(errors).values() if isinstance(x, type) and issubclass(x, luattn.Error)}
        self.assertEqual(len(found), 9)
        for kind in found:
            self.assertEqual((kind.__module__, getattr(luattn, kind.__name__, None)), ("luattn", kind))
            self.assertIn(kind.__name__, luattn.__all__)
            e = pickle.loads(pickle.dumps(kind("spec.lua:3: what is wrong")))
            self.assertEqual((type(e), str(e), e.status), (kind, "spec.lua:3: what is wrong", kind.status))
            self.assertTrue("".join(traceback.format_exception_only(e)).startswith(f"luattn.{kind.__name__}: "))
        self.assertEqual(pickle.loads(pickle.dumps(luattn.SpecError("spec.lua:3: x"))).line, 3)

    def test_without_a_driver(self):
        """The way out is one of Python, and not a function of C."""
        with open(f"{ROOT}/runtime/device/driver.c", encoding="utf-8") as file:
            way_out = re.search(r'#define CPU_WAY_OUT "(.*)"', file.read())[1]
        message = str(luattn.errors.error_of(6, f"cuInit: no usable device; {way_out}"))
        self.assertEqual(message, "cuInit: no usable device; install NVIDIA's driver, or move the tensors to the CPU, where every call runs")

    def test_a_missing_file(self):
        with self.assertRaises(FileNotFoundError):
            luattn.attention("none.lua")

    def test_names(self):
        with self.assertRaisesRegex(luattn.InvalidError, "'scale' is an argument of every attention"):
            luattn.attention(
                "return attention { scalars = { scale = 1.0 }, score_mod = function(s) return s * scale end }"
            )

    @unittest.skipUnless(np, "without NumPy")
    def test_names_of_a_call(self):
        sigmoid, q = luattn.attention(example("sigmoid")), np.zeros((1, 2, 4, 8), np.float32)
        with self.assertRaisesRegex(luattn.InvalidError, "sigmoid: input 'bias' is missing"):
            sigmoid(q, q, q)
        with self.assertRaisesRegex(
            luattn.InvalidError, "sigmoid: there is no argument 'x'; the spec declares bias"
        ):
            sigmoid(q, q, q, bias=np.zeros(2), x=None)
        with self.assertRaisesRegex(
            luattn.InvalidError, "sigmoid: layout: is 'sbhd', expected 'bhsd' or 'bshd'"
        ):
            sigmoid(q, q, q, layout="sbhd")
        with self.assertRaisesRegex(
            luattn.Unsupported, "sigmoid: return_lse: its online function has no lse"
        ):
            sigmoid(q, q, q, bias=None, return_lse=True)


class Examples(unittest.TestCase):
    def test_names(self):
        self.assertEqual({*luattn.examples()}, {os.path.basename(path)[:-4] for path in glob.glob(f"{ROOT}/examples/**/*.lua", recursive=True)})
        self.assertEqual(luattn.attention("gemma2").name, "gemma2")
        with self.assertRaisesRegex(FileNotFoundError, "'gema2' is neither a file nor an example of the package; did you mean 'gemma2'"):
            luattn.attention("gema2")
        with self.assertRaisesRegex(FileNotFoundError, "luattn.examples\\(\\) has their names"):
            luattn.attention("zzz")

    def test_command(self):
        """`python -m luattn`: info, and the program's subcommands with the name of an example for its path."""
        def run(*args, cwd=None):
            return subprocess.run([sys.executable, "-m", "luattn", *args], capture_output=True, text=True, cwd=cwd, env={**os.environ, "PYTHONPATH": f"{ROOT}/python"})

        info = run("info")
        self.assertEqual(info.returncode, 0, info.stderr)
        self.assertNotIn("luattn_cpu_forward", info.stdout)  # a function of C
        for word in ("luattn ", "Python ", "torch ", "NVRTC ", "GPUs ", "cache "):
            self.assertRegex(info.stdout, f"(?m)^{word}")
        self.assertIn("all within tolerance", run("check", "causal", "--device", "cpu").stdout)
        self.assertIn("luattn info", run("--help").stdout)
        with tempfile.TemporaryDirectory() as folder:  # the value of an option is no spec: nothing is written over an example
            before = os.stat(luattn.examples()["tanh"]).st_mtime_ns
            drawn = run("mask", "causal", "--shape", "1,1,1,64,64,8", "--svg", "tanh", cwd=folder)
            self.assertEqual(drawn.returncode, 0, drawn.stderr)
            self.assertEqual(os.listdir(folder), ["tanh"])
            self.assertEqual(os.stat(luattn.examples()["tanh"]).st_mtime_ns, before)
        wrong = run("check", "no_such_example")
        self.assertEqual(wrong.returncode, 1)
        self.assertIn("no_such_example", wrong.stderr)


class Masks(unittest.TestCase):
    def test_causal(self):
        mask = luattn.attention(example("causal")).mask(250, 250)
        self.assertEqual(mask.rows, [[1, 0, 0, 0], [2, 1, 0, 0], [2, 2, 1, 0], [2, 2, 2, 1]])
        self.assertEqual(str(mask).splitlines()[1], "█░  ")
        self.assertEqual(mask.sparsity, 6 / 16)
        self.assertIn("6 full, 4 partial, 6 empty", repr(mask))

    @unittest.skipIf(np is None, "needs NumPy")
    def test_streams(self):
        """Documents that do not lie together: a tile whose numbers are all others is empty, whatever lies between the least and the greatest."""
        text = "return attention { inputs = { id = { axes = {'kv'}, dtype = 'i32' } }, block_mask = function(b, h, q, k) return eq(id[q], id[k]) end }"
        ids = np.tile(np.repeat(np.array([[0, 2], [1, 65]]), 8, 1).repeat(4, 0).reshape(2, 64), (2, 1)).ravel().astype(np.int32)
        mask = luattn.attention(text).mask(256, 256, id=ids)
        self.assertEqual(mask.rows, [[1, 0, 1, 0], [0, 1, 0, 1], [1, 0, 1, 0], [0, 1, 0, 1]])
        ids[ids == 65] = 64  # as 0 in a set, so that sets say nothing, and bounds little
        self.assertEqual(luattn.attention(text).mask(256, 256, id=ids).rows[0], [1, 1, 1, 1])

    def test_picture(self):
        """Rectangles of the tiles' classes where their scores are, axes in positions, a legend with counts; the same as the program's."""
        mask = luattn.attention(example("causal")).mask(250, 250)
        svg = mask._repr_svg_()
        root = ElementTree.fromstring(svg)
        boxes = [(e.get("fill"), *(float(e.get(name)) for name in ("x", "y", "width", "height"))) for e in root.iter() if e.tag.endswith("rect") and e.get("x")]
        side = 480 / 250
        for i, row in enumerate(mask.rows):
            for j, one in enumerate(row):
                x, y = 76 + (64 * j + 20) * side, 62 + (64 * i + 20) * side
                found = [fill for fill, left, top, w, h in boxes if left < x < left + w and top < y < top + h and fill != "none"]
                self.assertEqual(found, [["#e69f00"], ["#0072b2"]][one - 1] if one else [])
        texts = [e.text for e in root.iter() if e.tag.endswith("text")]
        for text in ("causal, 250 x 250", "kv_idx", "q_idx", "0", "64", "128", "192", "6 empty", "4 partial", "6 full"):
            self.assertIn(text, texts)
        self.assertIn("tiles of 64 x 64: 62.5 % are computed", texts)
        with tempfile.TemporaryDirectory() as folder:
            mask.save(f"{folder}/mask.svg")
            with open(f"{folder}/mask.svg", encoding="utf-8") as file:
                self.assertEqual(file.read(), svg)
            with self.assertRaisesRegex(luattn.InvalidError, "save: path: '.*mask.jpg' ends in neither .svg nor .png"):
                mask.save(f"{folder}/mask.jpg")

    def test_picture_escapes(self):
        drawn, picture = ctypes.c_void_p(), capi.MaskPicture(b"a<b & c", b"\2", 8, 8, 8, 8)
        call("luattn_mask_svg", ctypes.byref(picture), ctypes.byref(drawn))
        self.assertEqual(ElementTree.fromstring(ctypes.string_at(drawn.value))[0].text, "a<b & c")
        lib.luattn_text_free(drawn)
        for wrong in (capi.MaskPicture(b"t", b"\3", 8, 8, 8, 8), capi.MaskPicture(b"t", b"\2", 0, 8, 8, 8)):
            with self.assertRaisesRegex(luattn.InvalidError, "expected"):
                call("luattn_mask_svg", ctypes.byref(wrong), ctypes.byref(drawn))

    def test_empty(self):
        self.assertEqual(luattn.attention(example("causal")).mask(0, 10).rows, [])

    def test_tile(self):
        with self.assertRaisesRegex(luattn.InvalidError, "tile: is 0"):
            luattn.attention(example("causal")).mask(10, 10, tile=0)


def softmax_attention(q, k, v, cap, window):
    """Gemma 2 by NumPy, with a window of `window`."""
    scores = np.einsum("bhqd,bhkd->bhqk", q, k) * q.shape[-1] ** -0.5
    scores = cap * np.tanh(scores / cap)
    i, j = np.arange(q.shape[2])[:, None], np.arange(k.shape[2])[None]
    scores = np.where((j <= i) & (i - j < window), scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    total = weights.sum(-1, keepdims=True)
    return weights / total @ v, (np.log(total) + scores.max(-1, keepdims=True))[..., 0]


@unittest.skipIf(np is None, "needs NumPy")
class Arrays(unittest.TestCase):
    def setUp(self):
        self.gemma2 = luattn.attention(example("gemma2"))
        random = np.random.default_rng(1)
        self.q, self.k, self.v = random.standard_normal((3, 2, 4, 33, 16))

    def test_numbers(self):
        o, lse = self.gemma2(self.q, self.k, self.v, cap=3.0, return_lse=True)
        want, want_lse = softmax_attention(self.q, self.k, self.v, 3.0, 4096)
        np.testing.assert_allclose(o, want, atol=1e-13)
        np.testing.assert_allclose(lse, want_lse, atol=1e-13)
        # A scalar that is not given has the spec's value again.
        np.testing.assert_allclose(
            self.gemma2(self.q, self.k, self.v),
            softmax_attention(self.q, self.k, self.v, 50.0, 4096)[0],
            atol=1e-13,
        )

    def test_layouts(self):
        want = self.gemma2(self.q, self.k, self.v)
        views = [x.transpose(0, 2, 1, 3).copy() for x in (self.q, self.k, self.v)]
        o = self.gemma2(*views, layout="bshd")
        self.assertTrue(o.flags.c_contiguous)
        np.testing.assert_array_equal(o.transpose(0, 2, 1, 3), want)
        o = self.gemma2(*(x.transpose(0, 2, 1, 3) for x in views))
        np.testing.assert_array_equal(o, want)
        self.assertTrue(o.transpose(0, 2, 1, 3).flags.c_contiguous)

    def test_parts_of_a_whole(self):
        want = self.gemma2(self.q, self.k, self.v)
        np.testing.assert_array_equal(
            self.gemma2(self.q[:, :, 7:], self.k, self.v, q_offset=7), want[:, :, 7:]
        )
        offsets = np.array([7, 7], np.int32)
        np.testing.assert_array_equal(
            self.gemma2(self.q[:, :, 7:], self.k, self.v, q_offset=offsets), want[:, :, 7:]
        )
        # The next call of the same frame has no offset.
        np.testing.assert_array_equal(self.gemma2(self.q, self.k, self.v), want)

    def test_inputs_of_a_part(self):
        """What a part of the whole may lack is refused with the axis; a free axis has all of it."""
        rng = np.random.default_rng(3)
        q, k, v = (rng.standard_normal((1, 4, 64, 8)) for _ in "qkv")
        ids, number = np.arange(64, dtype=np.int32)[None] // 20, np.arange(4, dtype=np.float32)
        documents = (
            "return attention { inputs = { doc = { axes = {'b', '%s'}, dtype = 'i32' } }, "
            "block_mask = function(b, h, q_idx, kv_idx) return kv_idx <= q_idx and eq(doc[{b, q_idx}], doc[{b, kv_idx}]) end }"
        )
        of_kv, of_q, free = (luattn.attention(documents % axis) for axis in ("kv", "q", "n"))
        want, half = free(q, k, v, doc=ids), np.s_[:, :, 32:]
        for part, message in (
            (lambda: of_kv(q, k[half], v[half], doc=ids[:, 32:], kv_offset=32, kv_len=64), "'doc': the spec reads its axis kv elsewhere than at kv_idx"),
            (lambda: of_kv(q, k[:, :, :32], v[:, :, :32], doc=ids[:, :32], kv_len=64), "declare a free axis"),
            (lambda: of_q(q[half], k, v, doc=ids[:, 32:], q_offset=32), "'doc': the spec reads its axis q elsewhere than at q_idx, and q is a part"),
        ):
            with self.assertRaisesRegex(luattn.InvalidError, message):
                part()
        np.testing.assert_array_equal(of_kv(q, k, v, doc=ids), want)
        np.testing.assert_array_equal(of_kv(q[half], k, v, doc=ids, q_offset=32), want[half])  # has all keys
        np.testing.assert_array_equal(free(q[half], k, v, doc=ids, q_offset=32), want[half])
        first, second = (
            free(q, k[:, :, i : i + 32], v[:, :, i : i + 32], doc=ids, kv_offset=i, kv_len=64, return_lse=True) for i in (0, 32)
        )
        np.testing.assert_allclose(free.merge(*zip(first, second))[0], want, atol=1e-13)
        heads = "return attention { inputs = { t = { axes = {'%s'} } }, score_mod = function(s, b, h) return s + t[heads - 1 - h] end }"
        of_heads, of_all = luattn.attention(heads % "h"), luattn.attention(heads % "n")
        want = of_all(q, k, v, t=number)
        np.testing.assert_array_equal(of_heads(q, k, v, t=number), want)
        shard = [x[:, 2:] for x in (q, k, v)]
        np.testing.assert_array_equal(of_all(*shard, t=number, head_offset=2, heads=4), want[:, 2:])
        with self.assertRaisesRegex(luattn.InvalidError, "'t': the spec reads its axis h elsewhere than at h, and q has a part of the heads"):
            of_heads(*shard, t=number[2:], head_offset=2, heads=4)

    def test_threads_have_frames_of_their_own(self):
        problems = [
            [np.random.default_rng(i).standard_normal((1, 1, 5 + i, 8)) for _ in "qkv"] for i in range(8)
        ]
        want = [self.gemma2(*p) for p in problems]
        wrong = []

        def work(i):
            wrong.extend(i for _ in range(50) if not np.array_equal(self.gemma2(*problems[i]), want[i]))

        threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        self.assertEqual(wrong, [])

    def test_refusals(self):
        q, k, v = self.q, self.k, self.v
        for call, message in (
            (lambda: self.gemma2(q[0], k, v), "q: has 3 dimensions, expected 4"),
            (lambda: self.gemma2(q.astype(np.complex128), k, v), "q: has type complex128, expected one of"),
            (lambda: self.gemma2(q.astype(np.float32), k, v), "k: has dtype float64, expected float32"),
            (lambda: self.gemma2(q, k, v, block_table=np.zeros(2)), "block_table: expected two axes"),
            (lambda: self.gemma2(q, k, v, seed=2), "gemma2: seed: the spec draws no random numbers: leave it out"),
        ):
            with self.assertRaisesRegex(luattn.Error, message):
                call()

    def test_a_bar_moves_where_tqdm_is(self):
        code = (
            "import sys, types\n"
            "class Bar:\n"
            "    n = 0\n"
            "    def __init__(self, total, **_): print(total)\n"
            "    def __enter__(self): return self\n"
            "    def __exit__(self, *_): pass\n"
            "    def update(self, by): self.n += by; print(self.n)\n"
            "sys.modules['tqdm'] = sys.modules['tqdm.auto'] = types.SimpleNamespace(tqdm=Bar)\n"
            "from luattn.progress import progress_bar\n"
            "with progress_bar(3) as f: f(None, 1, 3); f(None, 3, 3)\n"
            "sys.modules['tqdm.auto'] = None\n"
            "with progress_bar(3) as f: print(f)\n"
        )
        env = dict(os.environ, PYTHONPATH=f"{ROOT}/python")
        ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env)
        self.assertEqual(ran.stdout, "3\n1\n3\nNone\n", ran.stderr)

    def test_plan(self):
        self.assertIn("cpu: tiles of 64 x 64", self.gemma2.plan(self.q, self.k, self.v, backward=True))
        self.assertEqual(self.gemma2.plan(self.q, self.k, self.v, decode="always"), self.gemma2.plan(self.q, self.k, self.v))  # which has no choice
        for call in (self.gemma2, self.gemma2.plan):
            with self.assertRaisesRegex(luattn.InvalidError, "decode: is the string 'often', expected 'auto', 'always' or 'never'"):
                call(self.q, self.k, self.v, decode="often")


if __name__ == "__main__":
    unittest.main()
