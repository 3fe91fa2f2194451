"""ranks_c.py: luattn_parallel_forward and luattn_parallel_backward over NCCL, a process a GPU: results and gradients beside one GPU's, the same bits in
two runs, a call that fails on one rank, and times beside one GPU.

    python bench/ranks_c.py --ranks 2 [--library build/release/engine] [--out FILE.json] [--no-times] [--small]

--small: short sequences over gloo on the CPU, to try the program.

Calls go to the C functions themselves (ctypes), as a program in C makes them: libluattn.so and libluattn_nccl.so of --library."""

import argparse
import ctypes as c
import importlib.util
import json
import os
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_found = importlib.util.spec_from_file_location("capi", f"{ROOT}/python/luattn/_capi.py")
assert _found is not None and _found.loader is not None
capi = importlib.util.module_from_spec(_found)  # alone: the package loads libluattn.so by itself
_found.loader.exec_module(capi)

AUTO, STAGES, GATHERED = range(3)
CODES = {torch.float32: (2, 32), torch.bfloat16: (4, 16), torch.int32: (0, 32)}
CAUSAL = "return attention { name = 'causal', block_mask = causal() }"
CAPPED = """return attention { name = 'capped', online_func = dropout(0.1), scalars = { cap = 20.0 }, score_mod = function(s) return cap * tanh(s / cap) end,
  block_mask = causal() }"""
SINKS = """return attention { name = 'sinks', inputs = { sinks = { axes = {'h'}, grad = true } }, online_func = attention_sink('sinks'),
  block_mask = function(b, h, q, k) return k <= q and q - k < 1500 end }"""


class Transport(c.Structure):
    _fields_ = [("struct_size", c.c_size_t), ("self", c.c_void_p), ("rank", c.c_int), ("ranks", c.c_int), *((n, c.c_void_p) for n in ("send", "receive", "finish", "add", "sum"))]


class ParallelCall(c.Structure):
    _fields_ = [
        ("struct_size", c.c_size_t), ("chunks", c.c_int), ("chunk_rows", c.c_int), ("rank_of", c.c_void_p), ("needs", c.c_void_p), ("transport", c.c_void_p),
        ("workspace", c.c_void_p), ("workspace_size", c.c_size_t), ("schedule", c.c_int), ("parts", c.c_void_p), ("copies", c.c_void_p),
    ]  # fmt: skip


class Gloo:
    """A transport over torch.distributed, of tensors on the CPU, for --small."""

    def __init__(self, rank: int, ranks: int) -> None:
        self.begun: list[Any] = []
        move = c.CFUNCTYPE(c.c_int, c.c_void_p, c.c_int, c.c_void_p, c.c_size_t, c.c_void_p, c.c_void_p)
        add = c.CFUNCTYPE(c.c_int, c.c_void_p, c.c_void_p, c.c_void_p, c.c_size_t, c.c_int, c.c_void_p, c.c_void_p)
        total = c.CFUNCTYPE(c.c_int, c.c_void_p, c.c_void_p, c.c_size_t, c.c_int, c.c_void_p, c.c_void_p)
        finish = c.CFUNCTYPE(c.c_int, c.c_void_p, c.c_void_p, c.c_void_p)
        self.rank = rank
        self.mine: tuple[list[torch.Tensor], list[torch.Tensor]] = [], []
        self.functions = move(self.send), move(self.receive), finish(self.finish), add(self.add), total(self.total)
        self.transport = Transport(c.sizeof(Transport), None, rank, ranks, *(c.cast(f, c.c_void_p) for f in self.functions))

    @staticmethod
    def at(data: int, count: int, kind: Any) -> torch.Tensor:
        return torch.frombuffer((kind * count).from_address(data), dtype={c.c_ubyte: torch.uint8, c.c_float: torch.float32}[kind])

    def send(self, _: int, to: int, data: int, size: int, stream: int, err: int) -> int:
        mine = self.at(data, size, c.c_ubyte)
        self.mine[0].append(mine) if to == self.rank else self.begun.append(dist.P2POp(dist.isend, mine, to))
        return 0

    def receive(self, _: int, source: int, data: int, size: int, stream: int, err: int) -> int:
        to = self.at(data, size, c.c_ubyte)
        self.mine[1].append(to) if source == self.rank else self.begun.append(dist.P2POp(dist.irecv, to, source))
        return 0

    def finish(self, _: int, stream: int, err: int) -> int:
        for mine, to in zip(*self.mine):
            to.copy_(mine)
        for work in dist.batch_isend_irecv(self.begun) if self.begun else ():
            work.wait()
        self.begun, self.mine = [], ([], [])
        return 0

    def add(self, _: int, to: int, source: int, count: int, kind: int, stream: int, err: int) -> int:
        self.at(to, count, c.c_float).add_(self.at(source, count, c.c_float))
        return 0

    def total(self, _: int, data: int, count: int, kind: int, stream: int, err: int) -> int:
        dist.all_reduce(self.at(data, count, c.c_float))
        return 0


class UniqueId(c.Structure):
    _fields_ = [("bytes", c.c_char * 128)]


class Failure(Exception):
    pass


class Library:
    def __init__(self, folder: str) -> None:
        self.lib, self.nccl = c.CDLL(f"{folder}/libluattn.so"), c.CDLL(f"{folder}/libluattn_nccl.so")

    def __call__(self, name: str, *arguments: Any) -> None:
        err = capi.Error()
        library = self.nccl if name.startswith("luattn_nccl") else self.lib
        if getattr(library, name)(*arguments, c.byref(err)):
            raise Failure(err.message.decode())


class Tensors:
    """DLTensors of torch's, which live as long as this does."""

    def __init__(self) -> None:
        self.kept: list[Any] = []

    def __call__(self, t: torch.Tensor | None, is_null: bool = False) -> int | None:
        if t is None:
            return None
        shape, strides = ((c.c_int64 * max(t.dim(), 1))(*of) for of in (t.shape, t.stride()))
        device = capi.DLDevice(2, t.device.index) if t.is_cuda else capi.DLDevice(1, 0)
        made = capi.DLTensor(0 if is_null else t.data_ptr(), device, t.dim(), capi.DLDataType(*CODES[t.dtype], 1), shape, strides, 0)
        self.kept += [t, shape, strides, made]
        return c.addressof(made)


class Case:
    def __init__(self, name: str, text: str, dtype: torch.dtype, rows: int, heads: int, heads_kv: int, dim: int, window: int | None = None, by_state: bool = False, draws: bool = False) -> None:
        self.name, self.text, self.dtype, self.rows, self.heads, self.heads_kv, self.dim, self.window, self.by_state, self.draws = name, text, dtype, rows, heads, heads_kv, dim, window, by_state, draws


SMALL = (
    Case("causal, float32", CAUSAL, torch.float32, 1024, 4, 2, 64),
    Case("sinks and a window, float32", SINKS, torch.float32, 4096, 4, 2, 64, 1500, True),
    Case("a learned cap and dropout, bfloat16", CAPPED, torch.bfloat16, 8192, 8, 2, 128, None, False, True),
    Case("sinks and a window, bfloat16", SINKS, torch.bfloat16, 8192, 8, 2, 128, 1500, True),
)
LONG = (Case("causal 32k", CAUSAL, torch.bfloat16, 32768, 32, 8, 128), Case("sinks and a window of 1500, 64k", SINKS, torch.bfloat16, 65536, 32, 8, 128, 1500, True))


class Rank:
    """One process: its engine, and its communicator."""

    def __init__(self, rank: int, ranks: int, options: argparse.Namespace) -> None:
        self.rank, self.ranks, self.device = rank, ranks, "cpu" if options.small else "cuda"
        self.call = Library(options.library)
        self.engines = [self._open(deterministic) for deterministic in (0, 1)]
        if options.small:
            self.gloo = Gloo(rank, ranks)
            self.transport = self.gloo.transport
        else:
            self._open_nccl()
        self.specs: dict[str, tuple[c.c_void_p, c.c_void_p | None]] = {}

    def _open_nccl(self) -> None:
        torch.cuda.set_device(self.rank)
        torch.zeros(1, device="cuda")
        self.copies = torch.cuda.Stream()
        nccl, number, self.comm = c.CDLL(os.environ["LUATTN_NCCL"]), UniqueId(), c.c_void_p()
        if self.rank == 0:
            assert nccl.ncclGetUniqueId(c.byref(number)) == 0
        said: list[Any] = [bytes(number)]
        dist.broadcast_object_list(said)
        assert nccl.ncclCommInitRank(c.byref(self.comm), self.ranks, UniqueId.from_buffer_copy(said[0]), self.rank) == 0
        self.transport = Transport(struct_size=c.sizeof(Transport))
        self.call("luattn_nccl_open", self.comm, c.byref(self.transport))

    def _open(self, deterministic: int) -> c.c_void_p:
        given, engine = capi.EngineOptions(struct_size=c.sizeof(capi.EngineOptions), device=self.rank if self.device == "cuda" else capi.CPU, deterministic=deterministic), c.c_void_p()
        self.call("luattn_engine_open", c.byref(given), c.byref(engine))
        return engine

    def spec(self, case: Case) -> tuple[c.c_void_p, c.c_void_p | None]:
        if case.text not in self.specs:
            spec, parts = c.c_void_p(), c.c_void_p()
            text = case.text.encode()
            self.call("luattn_spec_load_text", b"ranks", text, c.c_size_t(len(text)), None, c.byref(spec))
            if case.by_state:
                self.call("luattn_spec_parts", spec, c.byref(parts))
            self.specs[case.text] = spec, parts if case.by_state else None
        return self.specs[case.text]


class Problem:
    """q, k, v and dout of the whole, the same on all ranks, and the rank's chunks: a zigzag."""

    def __init__(self, at: Rank, case: Case) -> None:
        self.at, self.case = at, case
        self.chunks = 2 * at.ranks
        self.size = case.rows // self.chunks
        self.rank_of = [i if i < at.ranks else self.chunks - 1 - i for i in range(self.chunks)]
        self.own = [i for i in range(self.chunks) if self.rank_of[i] == at.rank]
        needs = [[j <= i and (case.window is None or (i - j - 1) * self.size < case.window) for j in range(self.chunks)] for i in range(self.chunks)]
        self.given = (c.c_int * self.chunks)(*self.rank_of), (c.c_ubyte * self.chunks**2)(*(x for row in needs for x in row))
        generator = torch.Generator(at.device).manual_seed(3)
        heads = case.heads, case.heads_kv, case.heads_kv, case.heads
        self.whole = [torch.randn(1, case.rows, h, case.dim, device=at.device, generator=generator).to(case.dtype).transpose(1, 2) for h in heads]
        self.sinks = torch.linspace(-1, 2, case.heads, device=at.device)

    def rows(self, t: torch.Tensor, dim: int = 2) -> torch.Tensor:
        return torch.cat([t.narrow(dim, i * self.size, self.size) for i in self.own], dim)

    def results(self, q: torch.Tensor, k: torch.Tensor) -> dict[str, torch.Tensor]:
        case, made = self.case, {"o": torch.empty_like(q), "lse": torch.empty(q.shape[:3], device=q.device)}
        for name, t in (("dq", q), ("dk", k), ("dv", k)):
            made[name] = torch.full_like(t, torch.nan, dtype=torch.float32)
        if "sinks =" in case.text:
            made["dsinks"] = torch.full((case.heads,), torch.nan, device=q.device)
        if "scalars" in case.text:
            made["dscalars"] = torch.full((1,), torch.nan, device=q.device)
        return made


class Attention:
    """Calls of one GPU (whole), or of the rank's rows."""

    def __init__(
        self, p: Problem, whole: bool, schedule: int = AUTO, copies: bool = False, spare: int = 0, fails: bool = False, deterministic: bool = False
    ) -> None:
        self.p, self.at, self.is_whole, self.engine = p, p.at, whole, p.at.engines[deterministic]
        self.q, self.k, self.v, self.dout = [t if whole else p.rows(t) for t in p.whole]
        self.made = p.results(self.q, self.k)
        dl, case, made = Tensors(), p.case, self.made
        spec, parts = p.at.spec(case)
        self.spec, self.dl = spec, dl
        self.args = capi.Args(struct_size=c.sizeof(capi.Args), grad_f32=int(case.dtype != torch.float32), spare_multiprocessors=spare)
        for name in ("q", "k", "v", "dout"):
            setattr(self.args, name, dl(getattr(self, name)))
        for name in ("o", "lse", "dq", "dk", "dv"):
            setattr(self.args, name, dl(made[name], name == "dq" and fails))
        if "dsinks" in made:
            self.inputs = (capi.Input * 1)(capi.Input(b"sinks", dl(p.sinks), dl(made["dsinks"])))
            self.args.inputs, self.args.num_inputs = c.addressof(self.inputs), 1
        if "dscalars" in made:
            self.args.scalar_grads = dl(made["dscalars"])
        if case.draws:
            self.random = capi.Random(struct_size=c.sizeof(capi.Random), seed=7)
            self.args.random = c.addressof(self.random)
        self.call = ParallelCall(
            struct_size=c.sizeof(ParallelCall), chunks=p.chunks, chunk_rows=p.size, rank_of=c.addressof(p.given[0]), needs=c.addressof(p.given[1]),
            transport=c.addressof(p.at.transport), schedule=schedule, parts=None if parts is None or schedule == GATHERED else parts.value,
            copies=p.at.copies.cuda_stream if copies else None,
        )  # fmt: skip
        self.memory = [self._room(i) for i in range(2)]

    def _room(self, which: int) -> torch.Tensor:
        size = c.c_size_t()
        if self.is_whole:
            self.at.call("luattn_engine_workspace_size", self.engine, self.spec, which, c.byref(self.args), c.byref(size))
        else:
            self.at.call("luattn_parallel_workspace_size", self.engine, self.spec, which, c.byref(self.args), c.byref(self.call), c.byref(size))
        return torch.full((size.value + 256,), 255, dtype=torch.uint8, device=self.at.device)

    def run(self, which: int) -> None:
        room, stream = self.memory[which], None if self.at.device == "cpu" else c.c_void_p(torch.cuda.current_stream().cuda_stream)
        first = (room.data_ptr() + 255) // 256 * 256
        of = self.args if self.is_whole else self.call
        of.workspace, of.workspace_size = first, room.data_ptr() + room.numel() - first
        name = "forward" if which == 0 else "backward"
        if self.is_whole:
            self.at.call(f"luattn_{name}", self.engine, self.spec, c.byref(self.args), stream)
        else:
            self.at.call(f"luattn_parallel_{name}", self.engine, self.spec, c.byref(self.args), c.byref(self.call), stream)


def warm(at: Rank, cases: Sequence[Case]) -> None:
    """Compiles what the cases take, each rank some of it, into the cache that all share."""
    work = [(case, whole, schedule) for case in cases for whole, schedule in ((True, GATHERED), (False, GATHERED), (False, STAGES))]

    def one(item: tuple[Case, bool, int]) -> None:
        if at.device == "cuda":
            torch.cuda.set_device(at.rank)
        case, whole, schedule = item
        Attention(Problem(at, case), whole, schedule, deterministic=case in SMALL)

    for case in cases:
        at.spec(case)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(one, work[at.rank :: at.ranks]))
    wait()
    if at.device == "cuda":
        torch.cuda.empty_cache()


def wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    dist.barrier()


def worst_of(p: Problem, one: Attention, many: Attention) -> dict[str, float]:
    """The largest difference of each result, over its largest value; for bfloat16's o and for gradients the root mean square."""
    found = {}
    for name, t in many.made.items():
        want = one.made[name] if name in ("dsinks", "dscalars") else p.rows(one.made[name])
        a, b = t.double(), want.double()
        strict = p.case.dtype == torch.float32
        found[name] = float((a - b).abs().max() / b.abs().max() if strict else (a - b).square().mean().sqrt() / b.square().mean().sqrt())
    return found


def check(at: Rank, case: Case, say: Any) -> bool:
    p = Problem(at, case)
    one = Attention(p, True, deterministic=True)
    one.run(0), one.run(1)
    wait()
    limit, fine = (2e-5 if case.dtype == torch.float32 else 5e-3), True
    of_sums = {"dsinks": 1e-3 if case.dtype == torch.float32 else 2e-2, "dscalars": 2e-2}
    for name, schedule, copies in (("gathered", GATHERED, False), ("stages", STAGES, False), ("stages beside copies", STAGES, at.device == "cuda")):
        runs = []
        for _ in range(2):
            many = Attention(p, False, schedule, copies, deterministic=True)
            many.run(0), many.run(1)
            wait()
            runs.append(many)
        off = worst_of(p, one, runs[0])
        same = all(torch.equal(t, runs[1].made[n]) for n, t in runs[0].made.items() if n not in of_sums)  # NCCL adds these up in an order of its own
        good = same and all(x < of_sums.get(n, limit) for n, x in off.items())
        fine &= good
        say({"case": case.name, "order": name, "ok": good, "same bits in two runs": same, **{n: f"{x:.1e}" for n, x in off.items()}})
    return fine


def check_failure(at: Rank, say: Any) -> bool:
    p = Problem(at, SMALL[0])
    fine = True
    for schedule in (AUTO, STAGES):
        many = Attention(p, False, schedule, fails=at.rank == 1, deterministic=True)
        many.run(0)
        try:
            many.run(1)
            good = at.rank != 1
        except Failure as e:
            good = at.rank == 1 and "dq" in str(e)
        wait()
        if at.rank != 1:
            good &= bool(many.made["dk"].isnan().any()) and not bool(many.made["dq"].isnan().any())
        fine &= good
        say({"case": "a call fails on rank 1", "order": ("auto", "stages", "gathered")[schedule], "ok": good})
    return fine


def seconds_of(calls: Attention, which: int, rounds: int = 12) -> float:
    for _ in range(3):
        calls.run(which)
    wait()
    start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(rounds):
        calls.run(which)
    stop.record()
    wait()
    took = torch.tensor([start.elapsed_time(stop) / rounds * 1e-3])
    dist.all_reduce(took, dist.ReduceOp.MAX)
    return float(took)


def measure(at: Rank, case: Case, say: Any) -> None:
    p = Problem(at, case)
    one = Attention(p, True)
    orders = {"gathered": Attention(p, False, GATHERED), "stages": Attention(p, False, STAGES)}
    for spare in (0, 8, 16):
        orders[f"stages beside copies, {spare} spare"] = Attention(p, False, STAGES, True, spare)
    for which, name in enumerate(("forward", "backward")):
        for calls in (one, *orders.values()):
            calls.run(which)
        rounds = [(seconds_of(one, which, 4), {n: seconds_of(x, which, 4) for n, x in orders.items()}) for _ in range(3)]
        alone = sorted(r[0] for r in rounds)[1]
        for n in orders:
            took = sorted(r[1][n] for r in rounds)[1]
            say({"case": case.name, "pass": name, "order": n, "ms": round(took * 1e3, 3), "one GPU ms": round(alone * 1e3, 3), "efficiency": round(alone / took / at.ranks, 3)})


def work(rank: int, options: argparse.Namespace, folder: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=options.ranks)
    told: list[dict[str, Any]] = []

    def say(line: dict[str, Any]) -> None:
        everyone: list[Any] = [None] * options.ranks
        dist.all_gather_object(everyone, line)
        line = {**line, "ok": all(x["ok"] for x in everyone)} if "ok" in line else line
        told.append(line)
        if rank == 0:
            print(json.dumps(line), flush=True)
            if options.out:
                with open(options.out, "w") as f:
                    json.dump(told, f, indent=1)
            bad = [i for i, x in enumerate(everyone) if not x.get("ok", True)]
            if bad:
                print("  not so on ranks", bad, json.dumps(everyone[bad[0]]), flush=True)

    start = time.time()
    at = Rank(rank, options.ranks, options)
    if options.small:
        for case in SMALL:
            case.rows = 256 * options.ranks
    warm(at, (*SMALL, *(LONG if options.times else ())))
    say({"compiled after": round(time.time() - start, 1)})
    for case in SMALL:
        check(at, case, say)
    check_failure(at, say)
    say({"seconds": round(time.time() - start, 1)})
    for case in LONG if options.times else ():
        measure(at, case, say)
    if not all(line.get("ok", True) for line in told):
        raise SystemExit("some results are not those of one GPU")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--library", default=f"{ROOT}/build/release/engine")
    parser.add_argument("--out")
    parser.add_argument("--no-times", dest="times", action="store_false")
    parser.add_argument("--small", action="store_true")
    options = parser.parse_args()
    options.times &= not options.small
    if not options.small and "LUATTN_NCCL" not in os.environ:
        import nvidia.nccl

        os.environ["LUATTN_NCCL"] = f"{list(nvidia.nccl.__path__)[0]}/lib/libnccl.so.2"
    os.environ.setdefault("NCCL_NVLS_ENABLE", "0")
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(work, (options, folder), nprocs=options.ranks)


if __name__ == "__main__":
    main()
