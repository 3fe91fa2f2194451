"""bench_test.py: tests the benchmark's FLOP counts, choice of contenders, tables and plots.

Tables and plots use a canned result. Code that needs torch runs with a stub of torch.
"""

import contextlib
import copy
import gc
import importlib
import importlib.util
import io
import itertools
import json
import os
import re
import sys
import types
import unittest
from unittest import mock
import weakref
import xml.etree.ElementTree as ET

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, f"{ROOT}/bench")
import bars  # noqa: E402
import cells  # noqa: E402
import installed  # noqa: E402
import report  # noqa: E402


def row_kept(variant, length, q):
    """Returns the number of scores of row q that the variant's mask keeps."""
    if variant.endswith("full"):
        return length
    if variant == "local1024":
        return min(q, 1024) + 1
    if variant == "doc_causal8":
        return q % (length // 8) + 1
    if variant == "natten2d_k13":
        return 169
    return q + 1


class Work(unittest.TestCase):
    def test_kept_is_what_the_mask_keeps(self):
        # By convention the diagonal counts half. The error is at most one score in 2 * 512 rows of a
        # document.
        for name, variant in cells.VARIANTS.items():
            for length in (4096, 16384) if variant.kept else ():
                exact = sum(row_kept(name, length, q) for q in range(length)) / length**2
                self.assertAlmostEqual(variant.kept(length) / exact, 1, delta=1 / 500, msg=f"{name} {length}")

    def test_flops_of_equal_head_dims(self):
        p = cells.Problem(4, 16, 16, 4096, 128, 128)
        forward = 4 * 4 * 16 * 4096 * 4096 * 128
        self.assertEqual(cells.flops(p, 1.0, "fwd"), forward)
        self.assertEqual(cells.flops(p, 0.5, "bwd"), 2.5 * forward / 2)
        self.assertEqual(cells.flops(p, 0.5, "fwdbwd"), 3.5 * forward / 2)

    def test_packed_sequences_count_their_own_scores(self):
        p = cells.Problem(1, 2, 2, 12, 8, 8, lengths=(3, 5, 0, 4))
        self.assertAlmostEqual(cells.flops(p, cells.kept_of("causal", p), "fwd"), 4 * 2 * 8 * (9 + 25 + 16) / 2)
        equal = cells.Problem(1, 2, 2, 12, 8, 8, lengths=(4, 4, 4))
        batch = cells.Problem(3, 2, 2, 4, 8, 8)
        self.assertAlmostEqual(
            cells.flops(equal, cells.kept_of("causal", equal), "bwd"),
            cells.flops(batch, cells.kept_of("causal", batch), "bwd"),
        )

    def test_lengths_of_packed_sequences(self):
        for name, lengths in cells.LENGTHS.items():
            whole = 4096 if name == "8 of 512" else cells.TOKENS
            self.assertLess(abs(sum(lengths) / whole - 1), 0.01, name)
        self.assertEqual((min(cells.LENGTHS["24 skewed"]), max(cells.LENGTHS["24 skewed"])), (256, 5490))

    def test_flops_of_different_head_dims(self):
        p = cells.Problem(1, 1, 1, 10, 3, 5)
        self.assertEqual(cells.flops(p, 1.0, "fwd"), 2 * 100 * (3 + 5))  # S, O
        self.assertEqual(cells.flops(p, 1.0, "bwd"), 2 * 100 * (3 + 5 + 5 + 3 + 3))  # S, dP, dV, dQ, dK
        self.assertEqual(cells.flops(p, 1.0, "fwdbwd"), 2 * 100 * (8 + 19))

    def test_tiles_of_a_band(self):
        for length, m, n, left, right in (
            (64, 16, 8, 64, 0),
            (100, 16, 12, 20, 0),
            (100, 32, 8, 0, 0),
            (90, 16, 16, 7, 30),
            (50, 7, 9, 50, 50),
        ):
            tiles = {
                (q // m, kv // n) for q in range(length) for kv in range(length) if -left <= kv - q <= right
            }
            area = sum(
                (min(length, (i + 1) * m) - i * m) * (min(length, (j + 1) * n) - j * n) for i, j in tiles
            )
            self.assertEqual(cells.kept_in_tiles(length, m, n, left, right), area / length / length)

    def test_every_mask_of_data_has_its_spec(self):
        for name in cells.OF_DATA:
            self.assertIsNone(cells.VARIANTS[name].kept)
            self.assertTrue(os.path.exists(f"{ROOT}/{cells.VARIANTS[name].lua}"), name)
        with open(f"{ROOT}/bench/masks.py") as f:
            drawn = re.findall(r'^    "(\w+)":', f.read(), re.M)  # without torch, it cannot be imported
        self.assertEqual(sorted(drawn), sorted(cells.OF_DATA))

    def test_suites(self):
        plain = list(cells.plain())
        self.assertEqual(len(plain), 18)
        for cell in plain:
            p = cell.entries[0].problem
            self.assertEqual((p.batch * p.length, p.heads * p.dim), (16384, 2048))
        self.assertEqual(len(list(cells.variants())), 16)
        for name, suite in cells.SUITES.items():
            names = [cell.name for cell in suite()]
            self.assertEqual(len(names), len(set(names)), name)
            for cell in suite():
                self.assertEqual(cell.entries[0].library, "luattn_flex" if name == "flex" else "luattn")
                self.assertEqual(len({e.name for e in cell.entries}), len(cell.entries), cell.name)

    def test_fa4_and_flash_are_beside(self):
        for cell in cells.plain():
            self.assertIn("fa4", [e.library for e in cell.entries])
        for cell in cells.variants():
            libraries = [e.library for e in cell.entries]
            self.assertIn("flex_flash", libraries)
            self.assertEqual("fa4" in libraries, "natten2d_k13" not in cell.name, cell.name)

    def test_orders_are_random_and_the_same_for_a_seed(self):
        names = ("luattn", "cudnn", "fa2", "fa3")
        rounds = list(cells.orders(names, 240, "0 D64 full S1024 fwd"))
        self.assertEqual(len(rounds), 240)
        for order in rounds:
            self.assertEqual(sorted(order), sorted(names))
        self.assertEqual(rounds, list(cells.orders(names, 240, "0 D64 full S1024 fwd")))
        self.assertNotEqual(rounds, list(cells.orders(names, 240, "1 D64 full S1024 fwd")))
        # All 24 orders occur, each in 2 to 25 of 240 rounds: 10 are expected, with a deviation of 3.1.
        counts = [rounds.count(list(order)) for order in itertools.permutations(names)]
        self.assertTrue(all(2 <= n <= 25 for n in counts), counts)

    def test_specs_take_their_constants(self):
        self.assertIn("\nlocal W = 1025\n", cells.spec_text(ROOT, "local1024", 4096))
        self.assertIn("\nlocal H, W, K = 128, 128, 13\n", cells.spec_text(ROOT, "natten2d_k13", 16384))
        for name, variant in cells.VARIANTS.items():
            if not variant.constants:
                with open(f"{ROOT}/{variant.lua}") as f:
                    self.assertEqual(cells.spec_text(ROOT, name, 4096), f.read())


def entry(library, tflops, ratio=None, **more):
    return dict(
        name=library,
        library=library,
        tflops=tflops,
        right=True,
        **({"base_ratio": ratio} if ratio else {}),
        **more,
    )


def plain_row(dim, mask, length, entries):
    return {
        "suite": "plain",
        "cell": f"D{dim} {mask} S{length}",
        "D": dim,
        "mask": mask,
        "S": length,
        "pass": "fwd",
        "entries": entries,
    }


CANNED = {
    "device": "a <device>",
    "torch": "2",
    "cudnn": 9,
    "rounds": 3,
    "command": "bench/run.py --suite all",
    "skipped": ["dims: types D256 full S4096"],
    "rows": [
        plain_row(
            64, "full", 1024, [entry("luattn", 300.0), entry("cudnn", 400.0, 0.8), entry("fa3", 200.0, 1.5)]
        ),
        plain_row(
            64, "full", 4096, [entry("luattn", 500.0), entry("cudnn", 250.0, 2.0), entry("fa3", 400.0, 1.25)]
        ),
        plain_row(
            128,
            "causal",
            1024,
            [
                entry("luattn", 100.0),
                {"name": "cudnn", "library": "cudnn", "refused": "no such head dim"},
                {**entry("fa3", 900.0, 0.1), "right": False, "error": {"o": 1.0}},
            ],
        ),
        {
            "suite": "ratios",
            "cell": "modifications",
            "pass": "fwd",
            "entries": [
                {**entry("luattn", 600.0), "name": "causal", "tile_work": 1.1, "plan": "sm90 128x128"},
                {**entry("luattn", 400.0, 1.5), "name": "window 1024", "tile_work": 1.375},
            ],
        },
        {
            "suite": "variants",
            "cell": "causal B4 S4096",
            "variant": "causal",
            "shape": "B4 S4096",
            "pass": "bwd",
            "entries": [entry("luattn", 450.0), entry("flex", 150.0, 3.0)],
        },
    ],
}


class Tables(unittest.TestCase):
    def lines(self):
        return report.markdown(CANNED).split("\n")

    def test_cells_and_ratios(self):
        self.assertIn("| D64 full S1024 | 300.0 | 400.0 | 200.0 | 0.800 | 1.500 | 0.800 |", self.lines())
        self.assertIn("| D64 full S4096 | 500.0 | 250.0 | 400.0 | 2.000 | 1.250 | 1.250 |", self.lines())

    def test_neither_refused_nor_wrong_counts(self):
        self.assertIn("| D128 causal S1024 | 100.0 | - | wrong |  |  |  |", self.lines())
        self.assertIn("- D128 causal S1024 fwd: cudnn: no such head dim", self.lines())
        self.assertTrue(any(x.startswith("- D128 causal S1024 fwd: fa3: error") for x in self.lines()))
        self.assertEqual(len(report.wrong(CANNED)), 1)

    def test_geometric_means(self):
        self.assertIn(
            "luattn / cuDNN: geometric mean 1.265, lowest 0.800, highest 2.000 over 2 cells.", self.lines()
        )
        self.assertIn(
            "luattn / better of FA3, cuDNN: geometric mean 1.000, lowest 0.800, highest 1.250 over 2 cells.",
            self.lines(),
        )

    def test_ratios_of_another_base(self):
        entries = [entry("luattn_flex", 600.0), entry("luattn", 630.0, 0.95), entry("flex", 300.0, 2.0)]
        text = report.markdown({**CANNED, "rows": [{**plain_row(128, "full", 4096, entries), "suite": "flex"}]})
        self.assertIn("| cell | luattn.flex | luattn | FlexAttention | luattn.flex / luattn |", text)
        self.assertIn("| 600.0 | 630.0 | 300.0 | 0.950 | 2.000 |", text)
        self.assertIn("luattn.flex / FlexAttention: geometric mean 2.000", text)

    def test_ratios_of_entries(self):
        # 400 / 600 of the kept scores; (400 * 1.375) / (600 * 1.1) of the scores in kept tiles.
        self.assertIn("| modifications | window 1024 | 400.0 | 0.667 | 0.833 |  |", self.lines())
        self.assertIn("| modifications | causal | 600.0 | 1 |  | sm90 128x128 |", self.lines())

    def test_what_was_left_out(self):
        self.assertIn("- dims: types D256 full S4096", self.lines())

    def test_order_of_rounds(self):
        self.assertIn("medians of 3 interleaved rounds; ratios", self.lines()[0])  # as in older files
        text = report.markdown({**CANNED, "seed": 7})
        self.assertIn("medians of 3 interleaved rounds, each in a random order (seed 7); ratios", text)

    def test_line(self):
        self.assertTrue(
            report.line(CANNED["rows"][0]).endswith("luattn 300.0  cudnn 400.0 (1.25)  fa3 200.0 (0.67)")
        )


    def test_best_of_the_peers(self):
        row = plain_row(64, "full", 1024, [entry("luattn", 300.0), entry("cudnn", 400.0, 0.8)])
        row["entries"] += [entry("fa3", 200.0, 1.5), entry("fa4", 500.0, 0.6), entry("fa2", 900.0, 0.3)]
        text = report.markdown({**CANNED, "rows": [row]})
        self.assertIn("| luattn / best of FA4, FA3, cuDNN |", text)  # FA2 is not among them
        self.assertIn("luattn / best of FA4, FA3, cuDNN: geometric mean 0.600,", text)
        row["entries"] = [entry("luattn", 300.0), entry("flex", 100.0, 3.0), entry("flex_flash", 150.0, 2.0)]
        text = report.markdown({**CANNED, "rows": [row]})
        self.assertIn("luattn / better of FlexAttention FLASH, FlexAttention: geometric mean 2.000,", text)

    def test_what_is_not_there_comes_first(self):
        self.assertNotIn("Not there", report.markdown(CANNED))
        data = {**CANNED, "absent": {"fa3": "no build of it", "flex_flash": "torch 2.5 has none"}}
        lines = report.markdown(data).split("\n")
        self.assertEqual(lines[2], "Not there: FA3: no build of it; FlexAttention FLASH: torch 2.5 has none.")
        self.assertEqual(report.absences(data), [lines[2]])
        self.assertEqual(report.absences({"absent": {}}), [])

    def test_graphs_and_packages_are_named(self):
        self.assertNotIn("CUDA graphs", report.markdown(CANNED))
        data = {**CANNED, "graphs": True, "packages": {"flash-attn-4": "4.0"}}
        first = report.markdown(data).split("\n")[0]
        self.assertIn("each round's; launches replayed from CUDA graphs. `", first)
        self.assertIn("cuDNN 9, flash-attn-4 4.0. TFLOP/s", first)


class Installed(unittest.TestCase):
    def open(self, needed, without=()):
        def missing():
            raise installed.NotInstalled("pip install it")

        openers = {"luattn": lambda: 1, "fa4": missing, "flex": lambda: 2}
        return installed.open_contenders(openers, needed, without)

    def test_the_absent_have_a_reason(self):
        self.assertEqual(
            self.open({"luattn", "fa4", "flex"}), ({"luattn": 1, "flex": 2}, {"fa4": "pip install it"})
        )

    def test_what_is_left_out_or_in_no_cell_is_not_opened(self):
        self.assertEqual(self.open({"luattn", "fa4"}, ["fa4"]), ({"luattn": 1}, {}))
        self.assertEqual(self.open({"luattn"}), ({"luattn": 1}, {}))

    def test_another_error_is_passed_on(self):
        with self.assertRaises(ZeroDivisionError):
            installed.open_contenders({"luattn": lambda: 1 / 0}, {"luattn"}, ())

    def test_wanted(self):
        makers, absent = self.open({"luattn", "fa4"})
        self.assertIsNone(installed.check_wanted(["luattn"], makers, absent))
        self.assertIsNone(installed.check_wanted([], makers, absent))
        self.assertEqual(
            installed.check_wanted(["luattn", "fa4", "flex"], makers, absent),
            "fa4: pip install it; flex: no chosen cell has it",
        )

    def test_version_of_what_is_not_installed(self):
        self.assertEqual(installed.version_of("no-such-package-of-luattn"), "unversioned")


class Graph:
    """A CUDA graph whose replay writes 1 into what the launch wrote, unless the launch ran outside of it."""

    written = []
    held = True

    def __init__(self):
        self.log = []

    def capture_begin(self, capture_error_mode):
        self.log.append("begin")

    def capture_end(self):
        self.log.append("end")
        if "broken" in self.log:
            raise RuntimeError("the capture was invalidated")

    def replay(self):
        for x in Graph.written if Graph.held else []:
            x.value = 1.0


class Result:
    value = 0.0

    def fill_(self, value):
        self.value = value


class WithStub(unittest.TestCase):
    """Tests run.py and contenders.py with a stub of torch."""

    def setUp(self):
        torch = mock.MagicMock(__version__="2.5")
        torch.cuda.CUDAGraph = Graph
        names = ("torch", "torch.nn", "torch.nn.functional", "torch.nn.attention")
        stubs = {name: torch if name == "torch" else mock.MagicMock() for name in names}
        patch = mock.patch.dict(sys.modules, stubs)
        patch.start()
        self.addCleanup(patch.stop)  # also drops the modules imported here
        self.run = importlib.import_module("run")
        self.contenders = sys.modules["contenders"]
        Graph.written, Graph.held = [], True

    def member(self, launch, graphs=True):
        stub = types.SimpleNamespace(name="fa4", library="fa4")
        return self.run.Contender(stub, None, lambda: {"fwd": launch}, ["fwd"], graphs)

    def test_a_graph_is_replayed(self):
        result, launches = Result(), []

        def launch():
            launches.append(1)
            Graph.written = [result]
            return [result]

        member = self.member(launch)
        self.assertEqual(len(launches), 2)  # one to compile, one captured
        self.assertNotIn("refused", member.rows["fwd"])
        result.value = 5.0
        self.assertEqual(member.run["fwd"](), [result])
        self.assertEqual((result.value, len(launches)), (1.0, 2))

    def test_what_a_launch_holds_lives_as_long_as_its_graph(self):
        class Saved:
            pass

        def make_launch():
            saved = Saved()  # stands for tensors that autograd saves for backward
            return weakref.ref(saved), lambda: [Result()] if saved else []

        alive, launch = make_launch()
        member = self.member(launch)
        del launch
        gc.collect()
        self.assertIsNotNone(alive())
        del member
        gc.collect()
        self.assertIsNone(alive())

    def test_a_launch_outside_of_its_graph_gives_nan(self):
        result = Result()
        Graph.held = False
        self.member(lambda: [result]).run["fwd"]()
        self.assertNotEqual(result.value, result.value)

    def test_what_cannot_be_captured_is_refused_with_its_reason(self):
        graphs, launches = [], []

        def make():
            graphs.append(Graph())
            return graphs[0]

        def launch():
            launches.append(1)
            if len(launches) == 2:
                graphs[0].log.append("broken")
                raise RuntimeError("operation not permitted when stream is capturing")
            return []

        self.contenders.torch.cuda.CUDAGraph = make
        row = self.member(launch).rows["fwd"]
        self.assertEqual(
            row["refused"], "no CUDA graph: operation not permitted when stream is capturing"
        )
        self.assertEqual(graphs[0].log, ["begin", "broken", "end"])

    def test_without_graphs_nothing_is_captured(self):
        launch = lambda: []  # noqa: E731
        self.assertIs(self.member(launch, graphs=False).run["fwd"], launch)

    def arguments(self, *words):
        with mock.patch.object(sys, "argv", ["run.py", *words]):
            return self.run.arguments()

    def error(self, *words):
        with self.assertRaises(SystemExit), contextlib.redirect_stderr(io.StringIO()) as err:
            self.arguments(*words)
        return err.getvalue().splitlines()[-1]

    def test_names_of_contenders(self):
        a = self.arguments("--without", "fa2,fa4", "--no-flex", "--also", "old=x.so", "--with", "old")
        self.assertEqual(a.without, ["fa2", "fa4", "flex", "flex_flash"])
        self.assertEqual((a.wanted, a.graphs), (["old"], False))
        known = "there are luattn, cudnn, fa2, flex, flex_flash, fa3, fa4, dense, luattn_flex"
        for flag in ("--without", "--with"):
            self.assertEqual(self.error(flag, "fa5"), f"run.py: error: {flag}: 'fa5' is unknown; {known}")
        self.assertIn("'flex' is also left out", self.error("--with", "flex", "--no-flex"))

    def test_absent_contenders_say_how_to_install_them(self):
        openers = self.arguments().openers
        for name, text in (
            ("fa3", "--fa3 PATH"),
            ("fa4", "pip install --pre 'flash-attn-4[cu13]'"),
            ("flex_flash", "has no FLASH backend of FlexAttention; torch 2.11 has"),
        ):
            self.contenders.torch.__file__ = "/nowhere/torch/__init__.py"
            with mock.patch.dict(sys.modules, {"flash_attn": None, "cutlass": None}):
                with self.assertRaises(installed.NotInstalled) as e:
                    openers[name]()
            self.assertIn(text, str(e.exception))


class Plots(unittest.TestCase):
    def test_what_is_drawn(self):
        plots = report.plots(CANNED)
        self.assertEqual(sorted(plots), ["plain_fwd", "variants_bwd"])
        title, panels, columns = plots["plain_fwd"]
        self.assertEqual((columns, [name for name, _ in panels]), (2, ["full, D 64", "causal, D 128"]))
        rates = [values for _, groups in panels for _, _, values in groups]
        self.assertEqual([[v[x] for x in ("luattn", "cudnn", "fa3")] for v in rates], [[300, 400, 200], [500, 250, 400], [100, None, None]])  # refused and wrong ones have none
        title, panels, _ = plots["variants_bwd"]
        self.assertIn("a <device>", title)
        self.assertEqual(panels, [("B4 S4096", [("causal", "3.00x", {"luattn": 450.0, "flex": 150.0})])])

    def test_another_build_has_a_colour(self):
        self.assertEqual(len(set(bars.colours_of(["luattn", "cudnn", "fa3", "old"]).values())), len(bars.COLOURS) + 1)

    def test_without_matplotlib(self):
        with mock.patch.dict(sys.modules, {"matplotlib": None}), contextlib.redirect_stderr(io.StringIO()) as err:
            self.assertEqual(report.pictures(CANNED), {})
        self.assertIn("pip install matplotlib, and run bench/report.py", err.getvalue())

    @unittest.skipUnless(importlib.util.find_spec("matplotlib"), "without matplotlib")
    def test_pictures(self):
        """Bars to scale, labels as text, the same bytes each time."""
        drawn = report.pictures(CANNED)
        self.assertEqual(drawn, report.pictures(CANNED))
        found = [e for e in ET.fromstring(drawn["plain_fwd"]).iter() if (e.get("id") or "").startswith("bar ")]
        heights = []
        for bar in found:
            ys = [float(y) for y in re.findall(r"[ML] [-\d.]+ ([-\d.]+)", next(e.get("d") for e in bar.iter() if e.get("d")))]
            heights.append(max(ys) - min(ys))
        for height, rate in zip(heights, [300, 400, 200, 500, 250, 400, 100], strict=True):
            self.assertAlmostEqual(height / heights[0], rate / 300, delta=0.005)
        words = [e.text for e in ET.fromstring(drawn["variants_bwd"]).iter() if e.tag.endswith("text")]
        for word in ("causal", "3.00x", "450", "150", "FlexAttention", "luattn", "B4 S4096"):
            self.assertIn(word, words)


class Records(unittest.TestCase):
    own_tables = ("append", "decode", "prefill")  # records that their benchmarks write without report.py

    def test_results_of_record_have_tables(self):
        names = sorted(n for n in os.listdir(f"{ROOT}/bench/results") if n.endswith(".json"))
        self.assertIn("plain_sm80_h200.json", names)
        for name in names:
            if name.startswith(self.own_tables):
                continue
            with open(f"{ROOT}/bench/results/{name}") as f:
                data = json.load(f)
            text = report.markdown(data)
            for row in data["rows"]:
                rates = [f"{e['tflops']:.1f}" for e in row["entries"] if "tflops" in e]
                lines = [line for line in text.splitlines() if f"| {row['cell']} |" in line]
                for rate in rates:
                    self.assertTrue(any(f"| {rate} |" in line for line in lines), (name, row["cell"], rate))
            if {row["suite"] for row in data["rows"]} & {"plain", "variants"}:
                self.assertIn("geometric mean", text, name)
            self.assertEqual(report.wrong(data), [], name)

    def test_records_with_tables_of_their_own_are_in_them(self):
        names = [n for n in os.listdir(f"{ROOT}/bench/results") if n.startswith(self.own_tables) and n.endswith(".json")]
        self.assertGreaterEqual(len(names), 5)
        for name in names:
            with open(f"{ROOT}/bench/results/{name}") as f:
                rows = json.load(f)["rows"]
            with open(f"{ROOT}/bench/results/{name[:-5]}.md") as f:
                lines = f.read().splitlines()
            for row in rows:
                found = row["gb_s"] if "gb_s" in row else row["tflop_s"]
                rates = " | ".join(f"{rate} ({row['us'][x]})" if "us" in row else str(rate) for x, rate in found.items())
                self.assertTrue(any(line.startswith(f"| {row['cell']} | {rates} |") for line in lines), (name, row["cell"]))


if __name__ == "__main__":
    unittest.main()
