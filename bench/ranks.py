"""ranks.py: attention over the GPUs of one host beside one GPU: errors against float64, efficiency (the time of one GPU over that of all, and over
their number), and copies alone beside a copy between two GPUs.

    NCCL_NVLS_ENABLE=0 torchrun --nproc-per-node 2 bench/ranks.py [--out FILE.json] [--cases causal32k,..] [--schedules auto,stages,gathered] [--transports auto,group,peer] [--chunks no,yes] [--trace] [--peers causal32k,..]

--peers: of causal cases, torch's context_parallel and a zigzag ring over torch's kernels (zigzag_ring.py) too.
--trace: of each case and schedule, what the GPUs did in one forward and one backward, and how much of the copies no kernel hides.
--small: tiny tensors over gloo on the CPU, to try the program."""

import argparse
import itertools
import json
import os
import sys
import tempfile
import time

import torch
import torch.distributed as dist

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, f"{ROOT}/python")
import luattn  # noqa: E402
from luattn.parallel import ContextParallel, _forward_pass, _passes, plan  # noqa: E402
from zigzag_ring import chunks_of, zigzag_ring  # noqa: E402

CAUSAL = "return attention { name = 'causal', block_mask = causal() }"
CAPPED = "return attention { name = 'capped', score_mod = softcap(30.0), block_mask = causal() }"
DOCUMENTS = """return attention { name = 'documents', inputs = { doc_q = { axes = {'q'}, dtype = 'i32' }, doc_kv = { axes = {'kv'}, dtype = 'i32' } },
  block_mask = function(b, h, q, k) return eq(doc_q[q], doc_kv[k]) and k <= q end }"""
WINDOW = """return attention { name = 'window', inputs = { sinks = { axes = {'h'}, grad = true } }, online_func = attention_sink('sinks'),
  block_mask = function(b, h, q, k) return k <= q and q - k < %d end }"""
VIDEO = "return attention { name = 'video', block_mask = function(b, h, q, k) return q // %d >= k // %d and q // %d - k // %d <= 5 end }"


class Sizes:
    def __init__(self, small):
        self.k = 1024 if not small else 4 if int(os.environ.get("WORLD_SIZE", 1)) <= 4 else 16  # so that all ranks have rows
        self.heads, self.heads_kv, self.dim = (4, 2, 16) if small else (32, 8, 128)
        self.device, self.dtype = ("cpu", torch.float32) if small else ("cuda", torch.bfloat16)
        self.spare = 0
        self.rows_of_errors = 1024 if small else 8 * self.k
        frame = 8 * self.k
        self.cases = {
            "causal32k": (CAUSAL, 32), "causal64k": (CAUSAL, 64), "causal128k": (CAUSAL, 128), "documents64k": (DOCUMENTS, 64), "documents128k": (DOCUMENTS, 128),
            "window64k": (WINDOW % (4 * self.k), 64), "window128k": (WINDOW % (4 * self.k), 128), "video64k": (VIDEO % ((frame,) * 4), 64), "capped64k": (CAPPED, 64),
        }  # fmt: skip

    def tensors(self, rows):
        """q, k, v and dout, lengths before heads in memory."""
        torch.manual_seed(0)
        made = [torch.randn(1, rows, h, self.dim, device=self.device, dtype=self.dtype).transpose(1, 2) for h in (self.heads, self.heads_kv, self.heads_kv, self.heads)]
        return [t.requires_grad_() for t in made[:3]], made[3]

    def inputs(self, attention, rows):
        """Documents of log-normal lengths, to a quarter of the sequence."""
        made, generator = {}, torch.Generator().manual_seed(0)
        ids, at, number = torch.empty(rows, dtype=torch.int32), 0, 0
        while at < rows:
            size = torch.exp(7.5 + 1.2 * torch.randn(1, generator=generator)).item() * self.k / 1024
            size = int(min(rows - at, max(64, min(rows // 4, size))))
            ids[at : at + size], at, number = number, at + size, number + 1
        for name in attention.inputs:
            made[name] = ids.to(self.device) if name.startswith("doc") else torch.linspace(-1, 1, self.heads, device=self.device, requires_grad=True)
        return made


def sync(device):
    if device == "cuda":
        torch.cuda.synchronize()


def milliseconds(f, device, repeats=3, least=60):
    """The least of some means over calls that follow each other for so long at least, so that the host is ahead of the GPU."""
    f()
    sync(device)
    begin = time.perf_counter()
    f()
    sync(device)
    count = torch.tensor([min(32, max(2, int(least / (1e3 * (time.perf_counter() - begin)))))], device=device)
    if dist.get_world_size() > 1:
        dist.all_reduce(count)  # the same on all ranks
        count //= dist.get_world_size()
    count = int(count)
    found = []
    for _ in range(repeats):
        if dist.get_world_size() > 1:
            dist.barrier()
        sync(device)
        begin = time.perf_counter()
        for _ in range(count):
            f()
        sync(device)
        found.append(1e3 * (time.perf_counter() - begin) / count)
    return min(found)


def passes(call, qkv, inputs, dout, device):
    leaves = [*qkv, *(t for t in inputs.values() if t.requires_grad)]

    def forward():
        with torch.no_grad():
            call(*qkv, **inputs)

    o = call(*qkv, **inputs)
    return milliseconds(forward, device), milliseconds(lambda: torch.autograd.grad(o, leaves, dout, retain_graph=True), device)


def host_times(call, qkv, inputs, dout, device, count=4):
    """Milliseconds of the host for a forward and for a backward, with nothing to wait for."""
    leaves = [*qkv, *(t for t in inputs.values() if t.requires_grad)]

    def forward():
        with torch.no_grad():
            call(*qkv, **inputs)

    o, found = call(*qkv, **inputs), []
    for f in (forward, lambda: torch.autograd.grad(o, leaves, dout, retain_graph=True)):
        dist.barrier()
        sync(device)
        begin = time.perf_counter()
        for _ in range(count):
            f()
        found.append(1e3 * (time.perf_counter() - begin) / count)
    sync(device)
    return found


# --- traces ---


def traced(f, device):
    """What the GPU does in one call of f: (begin, end, kind, name) in milliseconds, from the first on."""
    from torch.profiler import ProfilerActivity, profile

    f()
    dist.barrier()
    sync(device)
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as made:
        f()
        sync(device)
    with tempfile.TemporaryDirectory() as folder:
        made.export_chrome_trace(f"{folder}/trace.json")
        with open(f"{folder}/trace.json", encoding="utf-8") as file:
            events = json.load(file)["traceEvents"]
    found = [(x["ts"] / 1e3, (x["ts"] + x["dur"]) / 1e3, x["name"]) for x in events if x.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")]
    begin = min((x[0] for x in found), default=0)
    return sorted((a - begin, b - begin, kind_of(name), name) for a, b, name in found)


def kind_of(name):
    if "nccl" in name.lower() or "PtoP" in name:
        return "copy"
    return "attention" if "luattn" in name else "other"


def union(spans):
    """The same times without overlap, in order."""
    found = []
    for a, b in sorted(spans):
        if found and a <= found[-1][1]:
            found[-1][1] = max(found[-1][1], b)
        else:
            found.append([a, b])
    return found


def outside(spans, others):
    """How long `spans` last while none of `others` does."""
    others, total = union(others), 0
    for a, b in union(spans):
        total += b - a - sum(max(0, min(b, d) - max(a, c)) for c, d in others)
    return total


def of_trace(events):
    """Milliseconds: all, of kernels of attention, of exchanges, of those that no kernel hides, of other work alone, and of none."""
    if not events:
        return {}
    spans = {kind: [(a, b) for a, b, k, _ in events if k == kind] for kind in ("attention", "copy", "other")}
    whole = [(a, b) for a, b, *_ in events]
    end = max(b for _, b in whole)
    return {
        "all": end, "attention": outside(spans["attention"], []), "copies": outside(spans["copy"], []), "copies_not_hidden": outside(spans["copy"], spans["attention"]),
        "other_alone": outside(spans["other"], spans["attention"] + spans["copy"]), "nothing": end - outside(whole, []),
        "events": [[round(a, 4), round(b, 4), kind, name[:60]] for a, b, kind, name in events],
    }  # fmt: skip


def shortened(trace):
    return {name: {key: round(x, 3) for key, x in one.items() if key != "events"} for name, one in trace.items()}


def traces(call, qkv, inputs, dout, device):
    leaves = [*qkv, *(t for t in inputs.values() if t.requires_grad)]
    o = call(*qkv, **inputs)
    backward = traced(lambda: torch.autograd.grad(o, leaves, dout, retain_graph=True), device)
    with torch.no_grad():
        return {"forward": of_trace(traced(lambda: call(*qkv, **inputs), device)), "backward": of_trace(backward)}


def slowest(numbers, device):
    t = torch.tensor(numbers, device=device, dtype=torch.float64)
    dist.all_reduce(t, op=dist.ReduceOp.MAX)
    return t.tolist()


class Ranks:
    """A case on this rank."""

    def __init__(self, sizes, text, rows, schedule, transport="auto", chunks=None, **more):
        self.sizes, self.attention = sizes, luattn.attention(text)
        self.inputs = sizes.inputs(self.attention, rows)
        masks = {name: t for name, t in self.inputs.items() if name.startswith("doc")}
        self.plan = plan(self.attention, rows, dist.get_world_size(), inputs=masks, heads=(sizes.heads, sizes.heads_kv), head_dim=sizes.dim, schedule=schedule, transport=transport, **more)
        self.local = ContextParallel(self.attention, None, self.plan, transport=transport, chunks=chunks, spare_multiprocessors=sizes.spare)
        self.own_inputs = {
            name: self.local.shard(t) if name.startswith("doc") else t.detach().requires_grad_() for name, t in self.inputs.items()
        }

    def own(self, t):
        return self.local.shard(t.detach().transpose(1, 2), 1).transpose(1, 2).requires_grad_(t.requires_grad)

    def copies(self, qkv):
        """Milliseconds of the keys of a forward alone, and the bytes that the rank receives."""
        if self.inputs:
            return None
        job = _passes.Job(self.attention._spec, self.local.schedules, self.plan, self.local.exchanges(qkv[0].device), (), (), [], None, None, by_lse=True, out_f32=False, swapped=False, sums=True, spare=0)

        def move():
            one = _forward_pass.Forward(job, *(t.detach() for t in qkv), (), None)
            one.exchange.begin(one.schedule, one.own.tensors, ())
            one._begin(len(one.schedule.stages))
            one.finish()

        chunks = sum(len(one.received) for one in self.local.schedules[0].rounds)
        size = chunks * self.plan.chunk_rows * self.sizes.heads_kv * self.sizes.dim * 2 * qkv[1].element_size()
        return milliseconds(move, self.sizes.device), size


def run(f, qkv, dout, inputs):
    """o and the gradients of q, k, v and inputs."""
    o = f(*qkv, **inputs)
    return [o.detach(), *torch.autograd.grad(o, [*qkv, *(t for t in inputs.values() if t.requires_grad)], dout)]


def apart(got, want, device):
    """How far results are from others, relative to these, on the rank where that is most."""
    return slowest([((x.double() - y.double()).norm() / y.double().norm()).item() for x, y in zip(got, want)], device)


def measure(sizes, name, schedules, trace, transports, chunks):
    return measure_each(sizes, name, trace, [(schedule, transport, of_chunks, {}) for schedule, transport, of_chunks in itertools.product(schedules, transports, chunks)])


def measure_each(sizes, name, trace, settings):
    """settings: schedule, transport, chunks, and other arguments of plan(), of each row."""
    text, thousands = sizes.cases[name]
    rows = thousands * sizes.k
    attention = luattn.attention(text)
    qkv, dout = sizes.tensors(rows)
    one = slowest(passes(attention, qkv, sizes.inputs(attention, rows), dout, sizes.device), sizes.device)
    whole = run(attention, qkv, dout, sizes.inputs(attention, rows))
    found = []
    for schedule, transport, of_chunks, more in settings:
        ranks = Ranks(sizes, text, rows, schedule, transport, of_chunks, **more)
        own = [ranks.own(t) for t in qkv]
        times = slowest(passes(ranks.local, own, ranks.own_inputs, ranks.own(dout), sizes.device), sizes.device)
        got = run(ranks.local, own, ranks.own(dout), ranks.own_inputs)
        of_one = apart(got, [ranks.own(t) for t in whole[:4]], sizes.device)
        best, n, moved = ranks.plan.prediction, dist.get_world_size(), ranks.copies(own)
        row = {
            "case": name, "schedule": schedule, "transport": transport, "chunks": ranks.local.chunks, "apart from one": of_one, "ranks": n, "gathered": ranks.local.gathered, "partition": best.partition, "chunk_rows": best.chunk_rows, "imbalance": best.imbalance,
            "one": one, "all": times, "efficiency": [x / n / y for x, y in zip(one, times)], "predicted": [best.forward, best.backward], "transports": ranks.plan.layers[0].transports,
            "host": slowest(host_times(ranks.local, own, ranks.own_inputs, ranks.own(dout), sizes.device), sizes.device),
            "calls": [[len(stage.calls) for stage in schedule.stages] for schedule in ranks.local.schedules],
        }  # fmt: skip
        if moved is not None:
            row["copies"] = {"ms": moved[0], "bytes": moved[1], "bytes_per_second": moved[1] / moved[0] * 1e3}
        if trace:
            row["trace"] = [None] * n
            dist.all_gather_object(row["trace"], traces(ranks.local, own, ranks.own_inputs, ranks.own(dout), sizes.device))
        found.append(row)
        if dist.get_rank() == 0:
            print(json.dumps({**row, "trace": [shortened(one) for one in row.get("trace", ())]}), flush=True)
    return found


def attempts(sizes, f):
    """Of each f(kernel, shared heads): milliseconds, or what it refuses. Keys have as many heads as queries where a peer asks for that."""
    found = {}
    for kernel, shared in itertools.product(("flash", "cudnn") if sizes.device == "cuda" else ("cpu",), (True, False)):
        name = f"{kernel}, {'heads of keys shared' if shared else 'keys repeated'}"
        try:
            found[name] = slowest(f(kernel, shared), sizes.device)
        except Exception as e:  # alike on all ranks
            found[name] = f"{type(e).__name__}: {str(e)[:200]}"
    return found


def of_torch(sizes, name):
    """torch's context_parallel with scaled_dot_product_attention, of a causal case."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.experimental import context_parallel
    from torch.nn.attention import SDPBackend, sdpa_kernel

    mesh = init_device_mesh(sizes.device, (dist.get_world_size(),))
    backends = {"flash": SDPBackend.FLASH_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION, "cpu": SDPBackend.FLASH_ATTENTION}
    qkv, dout = sizes.tensors(sizes.cases[name][1] * sizes.k)

    def run(kernel, shared):
        whole = [t.detach().contiguous() for t in (*qkv, dout)]
        if not shared:
            whole[1:3] = [t.repeat_interleave(sizes.heads // sizes.heads_kv, 1) for t in whole[1:3]]

        def call(q, k, v):
            # By this name, under which context_parallel replaces it.
            return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, **({"enable_gqa": True} if shared else {}))

        with context_parallel(mesh, buffers=whole, buffer_seq_dims=[2] * 4), sdpa_kernel(backends[kernel]):
            own, d = [t.detach().requires_grad_() for t in whole[:3]], whole[3]
            return passes(call, own, {}, d, sizes.device)

    return {"case": name, "torch": attempts(sizes, run)}


def of_ring(sizes, name):
    """A ring over torch's kernels whose chunks lie in a zigzag, of a causal case; errors of o, dq, dk and dv against one GPU's."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    qkv, dout = sizes.tensors(sizes.cases[name][1] * sizes.k)
    attention, errors = luattn.attention(CAUSAL), {}
    want = [chunks_of(t, rank, ranks) for t in run(attention, qkv, dout, {})]

    def attempt(kernel, shared):
        own = [chunks_of(t.detach(), rank, ranks).contiguous() for t in (*qkv, dout)]
        repeats = 1 if shared else sizes.heads // sizes.heads_kv
        own[1:3] = [t.repeat_interleave(repeats, 1) for t in own[1:3]]
        own[:3] = [t.requires_grad_() for t in own[:3]]
        call = zigzag_ring(kernel)
        o = call(*own[:3])
        got = [o.detach(), *torch.autograd.grad(o, own[:3], own[3])]
        got[2:] = [t.unflatten(1, (sizes.heads_kv, repeats)).sum(2) if repeats > 1 else t for t in got[2:]]
        errors[f"{kernel}, {'shared' if shared else 'repeated'}"] = apart(got, want, sizes.device)
        return passes(call, own[:3], {}, own[3], sizes.device)

    return {"case": name, "zigzag ring": attempts(sizes, attempt), "apart from luattn": errors}


def repeats(sizes, schedules):
    """Whether two runs under use_deterministic_algorithms have equal bits, at 8k rows."""
    found = []
    for name in ("causal32k", "documents64k", "window64k"):
        rows = sizes.rows_of_errors
        for schedule in schedules:
            ranks = Ranks(sizes, sizes.cases[name][0], rows, schedule)
            qkv, dout = sizes.tensors(rows)
            own, dout = [ranks.own(t) for t in qkv], ranks.own(dout)

            def run():
                o = ranks.local(*own, **ranks.own_inputs)
                return [o.detach(), *torch.autograd.grad(o, [*own, *(t for t in ranks.own_inputs.values() if t.requires_grad)], dout)]

            torch.use_deterministic_algorithms(True)
            same = all(torch.equal(x, y) for x, y in zip(run(), run()))
            torch.use_deterministic_algorithms(False)
            found.append({"case": ranks.attention.name, "schedule": schedule, "equal bits": slowest([float(not same)], sizes.device)[0] == 0})
    return found


def errors(sizes, schedules):
    """Of half precision against float64, at 8k rows: of one GPU and of all."""
    found = []
    for name in ("causal32k", "documents64k", "window64k"):
        text, rows = sizes.cases[name][0], sizes.rows_of_errors
        attention = luattn.attention(text)
        (q, k, v), dout = sizes.tensors(rows)
        inputs = sizes.inputs(attention, rows)

        want = run(attention, [t.detach().double().requires_grad_() for t in (q, k, v)], dout.double(), inputs)
        one = run(attention, (q, k, v), dout, inputs)
        for schedule in schedules:
            ranks = Ranks(sizes, text, rows, schedule)
            o, dq, dk, dv, *rest = run(ranks.local, [ranks.own(t) for t in (q, k, v)], ranks.own(dout), ranks.own_inputs)
            got = [*(ranks.local.unshard(t.contiguous(), 2) for t in (o, dq, dk, dv)), *rest]
            of_all, of_one = ([((x.double() - y).norm() / y.norm()).item() for x, y in zip(made, want)] for made in (got, one))
            found.append({"case": attention.name, "schedule": schedule, "errors": of_all, "of_one": of_one, "right": all(x <= 2 * y + 1e-7 for x, y in zip(of_all, of_one))})
    return found


def peer_rate(device):
    """Bytes a second from one GPU to another, by a copy engine; None on the CPU."""
    if device != "cuda" or torch.cuda.device_count() < 2:
        return None
    x, y = (torch.empty(1 << 30, dtype=torch.uint8, device=f"cuda:{i}") for i in range(2))
    y.copy_(x)
    torch.cuda.synchronize(0), torch.cuda.synchronize(1)
    begin = time.perf_counter()
    for _ in range(8):
        y.copy_(x)
    torch.cuda.synchronize(0), torch.cuda.synchronize(1)
    return 8 * (1 << 30) / (time.perf_counter() - begin)


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out")
    parser.add_argument("--cases", default="causal32k,causal64k,documents64k,window64k,video64k,capped64k")
    parser.add_argument("--schedules", default="auto,stages,gathered")
    parser.add_argument("--transports", default="auto", help="auto, group, peer, or group+peer: of forward and of backward")
    parser.add_argument("--chunks", default="auto", help="auto, no, yes: whether calls have several ranges of rows")
    parser.add_argument("--spare", type=int, default=0, help="multiprocessors that attention leaves to NCCL's kernels")
    parser.add_argument("--trace", action="store_true")
    parser.add_argument("--peers", default="", help="causal cases that torch's context_parallel and a zigzag ring run beside")
    parser.add_argument("--skip-errors", action="store_true")
    parser.add_argument("--small", action="store_true")
    given = parser.parse_args()
    sizes = Sizes(given.small)
    sizes.spare = given.spare
    if sizes.device == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl" if sizes.device == "cuda" else "gloo")
    schedules = given.schedules.split(",")
    results = {"errors": [] if given.skip_errors else errors(sizes, schedules) + repeats(sizes, schedules), "cases": [], "peer": peer_rate(sizes.device) if dist.get_rank() == 0 else None}
    dist.barrier()
    transports = [tuple(word.split("+")) if "+" in word else word for word in given.transports.split(",")]
    chunks = [{"auto": None, "no": False, "yes": True}[word] for word in given.chunks.split(",")]
    for name in filter(None, given.cases.split(",")):
        results["cases"] += measure(sizes, name, schedules, given.trace, transports, chunks)
    results["peers"] = []
    for name, f in itertools.product(filter(None, given.peers.split(",")), (of_ring, of_torch)):
        results["peers"].append(f(sizes, name))
        if dist.get_rank() == 0:
            print(json.dumps(results["peers"][-1]), flush=True)
    if dist.get_rank() == 0:
        for row in results["errors"]:
            print(json.dumps(row))
        print("a copy between two GPUs, bytes a second:", results["peer"])
        if given.out:
            with open(given.out, "w", encoding="utf-8") as file:
                json.dump(results, file, indent=1)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
