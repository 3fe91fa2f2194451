"""packed.py: contenders for packed sequences, a suite of run.py.

A problem with `lengths` has one batch entry, whose positions are sequences one after another, so that tensors and
results look as those of other problems do: [1, heads, total, dim], in memory [total, heads, dim]. The mask is causal
in each sequence. Contenders take the lengths from the device, as cu_seqlens, and the longest one from the host."""

import math

import torch


def rows(x):
    """[total, heads, dim] of [1, heads, total, dim], without a copy in either direction."""
    return x.squeeze(0).transpose(0, 1)


def entries(x):
    """The inverse of rows."""
    return x.transpose(0, 1).unsqueeze(0)


def ends(lengths):
    return torch.tensor([0, *lengths], dtype=torch.int32, device="cuda").cumsum(0).int()


def luattn(library, spec, t):
    """As contenders.luattn."""
    p = t.problem
    batch = varlen(p)
    qkv = {name: rows(getattr(t, name)) for name in "qkv"}
    out = dict(o=torch.full_like(qkv["q"], math.nan))
    if spec.has_lse:
        out["lse"] = torch.full((p.heads, p.length), math.nan, device="cuda")
    grads = {f"d{name}": torch.full_like(x, math.nan) for name, x in qkv.items()}
    forward = library.bind(spec, batch=batch, **qkv, **out)
    backward = None

    def fwd():
        forward()
        return [entries(out["o"])]

    def bwd():
        nonlocal backward
        if backward is None:
            forward()
            backward = library.bind(
                spec, backward=True, batch=batch, dout=rows(t.dout), **qkv, **out, **grads
            )
        backward()
        return [entries(x) for x in grads.values()]

    return dict(fwd=fwd, bwd=bwd, fwdbwd=lambda: fwd() + bwd())


def fa2(t):
    """FlashAttention-2 as torch.nn.attention.varlen has it: a function of (q, k, v)."""
    from torch.nn.attention.varlen import varlen_attn

    cu, longest = ends(t.problem.lengths), max(t.problem.lengths)

    def call(q, k, v):
        return entries(varlen_attn(rows(q), rows(k), rows(v), cu, cu, longest, longest, **causal))

    for causal in (dict(window_size=(-1, 0)), dict(is_causal=True)):  # of newer and older versions
        try:
            call(t.q, t.k, t.v)
            break
        except TypeError:
            continue
    return call


def varlen(p):
    """The lengths as luattn's package and FlashAttention-3's and -4's functions take them; none for a problem of equal lengths."""
    if not p.lengths:
        return {}
    cu, longest = ends(p.lengths), max(p.lengths)
    return dict(cu_seqlens_q=cu, cu_seqlens_k=cu, max_seqlen_q=longest, max_seqlen_k=longest)


class Cudnn:
    """Graphs of cuDNN's frontend with ragged tensors."""

    def __init__(self, t):
        import cudnn

        self.cudnn, self.t, self.handle = cudnn, t, cudnn.create_handle()
        p = t.problem
        self.cu = ends(p.lengths)
        self.lengths = torch.tensor(p.lengths, dtype=torch.int32, device="cuda")
        self.stats = torch.full((p.length, p.heads), math.nan, device="cuda")
        self.out = {name: torch.full_like(rows(t.q), math.nan) for name in ("o", "dq", "dk", "dv")}
        self.graphs = {}

    def open(self):
        data = self.cudnn.data_type
        self.data = {}
        return self.cudnn.pygraph(
            io_data_type=data.BFLOAT16 if self.t.q.dtype is torch.bfloat16 else data.HALF,
            intermediate_data_type=data.FLOAT,
            compute_data_type=data.FLOAT,
            handle=self.handle,
        )

    def numbers(self, graph, values):
        """An array with one number a sequence."""
        x = graph.tensor(dim=[len(values), 1, 1, 1], stride=[1, 1, 1, 1], data_type=self.cudnn.data_type.INT32)
        self.data[x] = values.view(-1, 1, 1, 1)
        return x

    def shape(self, width):
        p = self.t.problem
        longest = max(p.lengths)
        return dict(
            dim=[len(p.lengths), p.heads, longest, width],
            stride=[longest * p.heads * width, width, p.heads * width, 1],
        )

    def offsets(self, graph, width):
        return self.numbers(graph, self.cu * (self.t.problem.heads * width))

    def ragged(self, graph, values, width, **kw):
        x = graph.tensor(**self.shape(width), ragged_offset=self.offsets(graph, width), **kw)
        self.data[x] = values
        return x

    def result(self, graph, x, values, width, kind):
        x.set_output(True).set_data_type(kind).set_dim(self.shape(width)["dim"]).set_stride(self.shape(width)["stride"])
        x.set_ragged_offset(self.offsets(graph, width))
        self.data[x] = values

    def options(self, graph):
        return dict(
            attn_scale=self.t.problem.dim**-0.5,
            use_causal_mask=True,
            use_padding_mask=True,
            seq_len_q=self.numbers(graph, self.lengths),
            seq_len_kv=self.numbers(graph, self.lengths),
        )

    def finished(self, graph):
        graph.validate()
        graph.build_operation_graph()
        graph.create_execution_plans([self.cudnn.heur_mode.A, self.cudnn.heur_mode.FALLBACK])
        graph.check_support()
        graph.build_plans()
        data, workspace = self.data, torch.empty(max(1, graph.get_workspace_size()), dtype=torch.uint8, device="cuda")

        def launch():
            self.cudnn.set_stream(handle=self.handle, stream=torch.cuda.current_stream().cuda_stream)
            graph.execute(data, workspace, handle=self.handle)

        return launch

    def forward(self):
        t, p, kinds = self.t, self.t.problem, self.cudnn.data_type
        graph = self.open()
        io = kinds.BFLOAT16 if t.q.dtype is torch.bfloat16 else kinds.HALF
        q, k, v = (self.ragged(graph, rows(x), p.dim) for x in (t.q, t.k, t.v))
        o, stats = graph.sdpa(q=q, k=k, v=v, generate_stats=True, **self.options(graph))
        self.result(graph, o, self.out["o"], p.dim, io)
        self.result(graph, stats, self.stats, 1, kinds.FLOAT)
        return self.finished(graph)

    def backward(self):
        t, p, kinds = self.t, self.t.problem, self.cudnn.data_type
        graph = self.open()
        io = kinds.BFLOAT16 if t.q.dtype is torch.bfloat16 else kinds.HALF
        q, k, v, dout = (self.ragged(graph, rows(x), p.dim) for x in (t.q, t.k, t.v, t.dout))
        o = self.ragged(graph, self.out["o"], p.dim)
        stats = self.ragged(graph, self.stats, 1, data_type=kinds.FLOAT)
        most = dict(max_total_seq_len_q=p.length, max_total_seq_len_kv=p.length)
        grads = graph.sdpa_backward(q=q, k=k, v=v, o=o, dO=dout, stats=stats, **most, **self.options(graph))
        for name, x in zip(("dq", "dk", "dv"), grads):
            self.result(graph, x, self.out[name], p.dim, io)
        return self.finished(graph)

    def passes(self):
        def launched(name):
            if name not in self.graphs:
                self.graphs[name] = getattr(self, name)()
            self.graphs[name]()

        def fwd():
            launched("forward")
            return [entries(self.out["o"])]

        def bwd():
            if "backward" not in self.graphs:
                launched("forward")
            launched("backward")
            return [entries(self.out[name]) for name in ("dq", "dk", "dv")]

        return dict(fwd=fwd, bwd=bwd, fwdbwd=lambda: fwd() + bwd())
