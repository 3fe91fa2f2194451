"""graphs_test.py: the ops of torch in graphs: opcheck, compile, export, checkpoints, several processes. On the CPU. Exits with 77 where
torch is not installed."""

import os
import subprocess
import sys
import tempfile
import types
import unittest

from problems import ROOT, backward_op, example, forward_op, grads, problem  # exits without torch, so first

import luattn
import luattn.flash_attn
import torch
from torch.utils.checkpoint import checkpoint

RANK = """
import os, sys, torch, luattn
rank = int(sys.argv[1])
torch.distributed.init_process_group("gloo", init_method=f"file://{sys.argv[3]}/meet", rank=rank, world_size=2)
torch.manual_seed(1)

class Module(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.project = torch.nn.Linear(8, 24, dtype=torch.float64)
        self.sinks = torch.nn.Parameter(torch.randn(2))
        self.attention = luattn.attention(sys.argv[2])

    def forward(self, x):
        q, k, v = self.project(x).unflatten(-1, (3, 2, 4)).unbind(2)
        return self.attention(q, k, v, layout="bshd", sinks=self.sinks)

alone, x = Module(), torch.randn(4, 6, 8, dtype=torch.float64)
both = torch.nn.parallel.DistributedDataParallel(Module())
both.module.load_state_dict(alone.state_dict())
both(x[2 * rank : 2 * rank + 2]).square().sum().backward()
(alone(x).square().sum() / 2).backward()
for a, b in zip(alone.parameters(), both.parameters()):
    torch.testing.assert_close(a.grad, b.grad)
torch.distributed.barrier()  # who closes its connections while the other still reads from them breaks it
torch.distributed.destroy_process_group()
"""


class Graphs(unittest.TestCase):
    def setUp(self):
        torch.manual_seed(4)
        torch._dynamo.reset()

    def test_opcheck(self):
        for name in ("gemma2", "t5_relative_bias", "sigmoid", "retention"):
            attention = example(name)
            for grad in (True, False):
                qkv, inputs = problem(attention, d=8)
                tensors = [t if grad else t.detach() for t in (*qkv, *inputs.values())]
                scalars = list(attention.scalars.values())
                torch.library.opcheck(
                    forward_op, (attention.text, *tensors[:3], tensors[3:], scalars, None, 0.0)
                )

    def test_opcheck_of_backward(self):
        gemma2 = example("gemma2")
        q, k, v = (t.detach() for t in problem(gemma2)[0])
        o, lse, saved = forward_op(gemma2.text, q, k, v, [], [50.0], None, 0.0)
        for wants in (31, 2, 17):
            args = (gemma2.text, o, lse, q, k, v, o, lse, saved, [], [50.0], None, 0.0)
            torch.library.opcheck(backward_op, args, {"wants": wants})

    def test_compile(self):
        attention = example("t5_relative_bias", double=True)
        for dynamic in (False, True):
            torch._dynamo.reset()
            run = torch.compile(
                lambda q, k, v, bias: attention(q, k, v, bias=bias, return_lse=True),
                fullgraph=True, dynamic=dynamic, backend="aot_eager",
            )  # fmt: skip
            for n in (5, 9, 12):
                qkv, inputs = problem(attention, n=n, m=n, b=2)
                tensors = [*qkv, inputs["bias"]]
                want = grads(lambda: attention(*qkv, return_lse=True, **inputs), tensors)  # noqa: B023
                for a, b in zip(grads(lambda: run(*tensors), tensors), want):  # noqa: B023
                    torch.testing.assert_close(a, b, atol=0, rtol=0)

    def test_numbers_of_flash_attn_that_vary(self):
        """What a spec has as constants, Dynamo may hold as symbols: with dynamic=True, and where a call has had another number."""
        varied = [{"softcap": cap} for cap in (0.0, 30.0, 50.0, 20.0)], [{"window_size": (left, 0)} for left in (2, 3, 4, 20)]
        for dynamic, calls in ((dynamic, calls) for dynamic in (None, True) for calls in varied):
            torch._dynamo.reset()
            run = torch.compile(luattn.flash_attn.flash_attn_func, fullgraph=True, dynamic=dynamic, backend="aot_eager")
            for n, options in zip((5, 9, 12, 12), calls):
                q = torch.randn(1, n, 2, 16)
                torch.testing.assert_close(run(q, q, q, **options), luattn.flash_attn.flash_attn_func(q, q, q, **options), atol=0, rtol=0)

    def test_a_graph_in_comments(self):
        """Inductor writes nodes into comments of what it generates, so no argument of an op may have a new line."""
        t5 = example("t5_relative_bias", double=True)
        self.assertIn("\n", t5.text)
        from torch._dynamo.backends.common import aot_autograd

        qkv, inputs = problem(t5)
        graphs = []

        def backend(graph, _):
            graphs.append(graph)
            return graph

        both = aot_autograd(fw_compiler=backend, bw_compiler=backend)
        tensors = [*qkv, inputs["bias"]]
        run = torch.compile(lambda q, k, v, bias: t5(q, k, v, bias=bias), fullgraph=True, backend=both)
        found, want = (torch.autograd.grad(f(*tensors).sum(), tensors) for f in (run, lambda q, k, v, bias: t5(q, k, v, bias=bias)))
        for a, b in zip(found, want):
            torch.testing.assert_close(a, b, atol=0, rtol=0)
        nodes = [node for graph in graphs for node in graph.graph.nodes if "luattn" in str(node.target)]
        self.assertEqual([node.target for node in nodes], [forward_op, backward_op])
        for node in nodes:
            self.assertNotIn("\n", node.format_node())
        # A graph that an earlier version exported has the text as it is.
        self.assertIs(luattn._spec.spec_of(t5._spec.line), luattn._spec.spec_of(t5.text))
        with self.assertRaises(luattn.SpecError):
            luattn.attention('"{')

    def test_scalars_do_not_compile_anew(self):
        gemma2 = example("gemma2")
        counter = torch._dynamo.testing.CompileCounter()
        run = torch.compile(lambda q, k, v, cap: gemma2(q, k, v, cap=cap), fullgraph=True, backend=counter)
        qkv, _ = problem(gemma2)
        for cap in (1.0, 2.0, 3.0, 4.0):
            torch.testing.assert_close(run(*qkv, cap), gemma2(*qkv, cap=cap))
        self.assertLessEqual(counter.frame_count, 2)  # the second float becomes symbolic

    def test_export_in_another_process(self):
        class Module(torch.nn.Module):
            def forward(self, q, k, v):
                return gemma2(q, k, v, cap=2.0)

        gemma2 = example("gemma2")
        qkv = [t.detach() for t in problem(gemma2, n=6)[0]]
        length = torch.export.Dim("length", min=2, max=4096)
        program = torch.export.export(Module(), tuple(qkv), dynamic_shapes=({2: length},) * 3)
        longer = [t.detach() for t in problem(gemma2, n=11, m=11)[0]]
        with tempfile.TemporaryDirectory() as folder:
            torch.export.save(program, f"{folder}/p.pt2")
            torch.save((longer, gemma2(*longer, cap=2.0)), f"{folder}/t.pt")
            code = (
                "import torch, luattn\n"
                f"program, (qkv, want) = torch.export.load('{folder}/p.pt2'), torch.load('{folder}/t.pt')\n"
                "torch.testing.assert_close(program.module()(*qkv), want, atol=0, rtol=0)"
            )
            env = dict(os.environ, PYTHONPATH=f"{ROOT}/python")
            ran = subprocess.run(
                [sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, env=env
            )
        self.assertEqual(ran.returncode, 0, ran.stderr)

    def test_checkpoint(self):
        gemma2 = example("gemma2")
        qkv, _ = problem(gemma2)
        want = torch.autograd.grad(gemma2(*qkv).sum(), qkv)
        for reentrant in (False, True):
            o = checkpoint(gemma2, *qkv, use_reentrant=reentrant)
            for t in qkv:
                t.grad = None
            o.sum().backward()
            for t, w in zip(qkv, want):
                torch.testing.assert_close(t.grad, w, atol=0, rtol=0)

    def test_data_parallel(self):
        env = dict(os.environ, PYTHONPATH=f"{ROOT}/python", OMP_NUM_THREADS="1")
        with tempfile.TemporaryDirectory() as folder:
            ranks = [
                subprocess.Popen(
                    [sys.executable, "-W", "ignore", "-c", RANK, str(i), f"{ROOT}/examples/attention_sink.lua", folder],
                    stderr=subprocess.PIPE, text=True, env=env,
                )
                for i in range(2)
            ]  # fmt: skip
            errors = [rank.communicate()[1] for rank in ranks]
        self.assertEqual([rank.returncode for rank in ranks], [0, 0], "\n".join(errors))

    def test_the_training_example(self):
        sys.path.insert(0, f"{ROOT}/examples/python")
        import train_gpt

        tiny = dict(layers=1, heads=2, dim=16, length=16, batch=2, vocabulary=32, steps=3)
        size = types.SimpleNamespace(**tiny)
        losses = [
            train_gpt.train(size, attention, "cpu")[0]
            for attention in (
                lambda q, k, v: torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True),
                example("causal"),
            )
        ]
        torch.testing.assert_close(*losses, atol=1e-5, rtol=1e-5)
        self.assertGreater((losses[0][0] - losses[0][-1]).item(), 1e-3)

    def test_luattn_first_then_torch(self):
        code = (
            f"import luattn; a = luattn.attention('{ROOT}/examples/gemma2.lua'); import torch\n"
            "q = torch.randn(1, 2, 5, 8)\n"
            "f = torch.compile(lambda q: a(q, q, q), fullgraph=True, backend='aot_eager')\n"
            "torch.testing.assert_close(f(q), a(q, q, q)); print(torch.cuda.is_initialized())"
        )
        env = dict(os.environ, PYTHONPATH=f"{ROOT}/python")
        ran = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, env=env
        )
        self.assertEqual(ran.stdout, "False\n", ran.stderr)


if __name__ == "__main__":
    unittest.main()
