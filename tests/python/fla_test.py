"""fla_test.py: the operators of luattn.fla beside recurrences in torch, with their gradients; what they refuse."""

import _thread
import os
import pickle
import sys
import threading
import unittest
import unittest.mock

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from with_torch import torch  # noqa: E402

import luattn  # noqa: E402
from luattn import fla  # noqa: E402

F = torch.nn.functional
B, T, H, HV, K, V = 2, 9, 2, 4, 5, 3
f64 = {"dtype": torch.float64}


def rand(*shape):
    return torch.randn(*shape, **f64, requires_grad=True)


def norm(x):
    return x * (x.square().sum(-1, keepdim=True) + 1e-6).rsqrt()


def recurrence(q, k, v, g=None, w=None, r=None, e=None, before=False, state=None, scale=None):
    """Of all heads at once: q, k, r, e [B, T, HV, K], v [B, T, HV, V], g [B, T, HV] or [.., K], w [B, T, HV]."""
    s = torch.zeros(q.shape[0], *q.shape[2:], v.shape[3], **f64) if state is None else state
    o = []
    for t in range(q.shape[1]):
        was = s
        if g is not None:
            s = s * (g[:, t, :, None, None] if g.dim() == 3 else g[:, t, :, :, None]).exp()
        if r is not None:
            y = torch.einsum("bhk,bhkv->bhv", r[:, t], was if before else s)
            s = s - torch.einsum("bhk,bhv->bhkv", (k if e is None else e)[:, t], y)
        b = v[:, t] if w is None else w[:, t, :, None] * v[:, t]
        s = s + torch.einsum("bhk,bhv->bhkv", k[:, t], b)
        o.append((K**-0.5 if scale is None else scale) * torch.einsum("bhk,bhkv->bhv", q[:, t], s))
    return torch.stack(o, 1), s


def of_values(x):
    return x.repeat_interleave(HV // x.shape[2], 2)


class Operators(unittest.TestCase):
    def setUp(self):
        torch.manual_seed(1)
        self.q, self.k, self.v, self.state = rand(B, T, H, K), rand(B, T, H, K), rand(B, T, HV, V), rand(B, HV, K, V)
        self.g, self.gk, self.beta = rand(B, T, HV), rand(B, T, HV, K), rand(B, T, HV)

    def check(self, found, want, *leaves):
        """Both are (o, state): the same numbers, and gradients of leaves."""
        ways = [torch.randn_like(x) for x in want]
        for a, b in zip(found, want):
            torch.testing.assert_close(a, b, rtol=0, atol=1e-11)
        grads = [torch.autograd.grad([x for x in both], leaves, ways, retain_graph=True) for both in (found, want)]
        for a, b in zip(*grads):
            torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-10)

    def test_decays(self):
        q, k, v, s = self.q, self.k, self.v, self.state
        more = {"initial_state": s, "output_final_state": True}
        decay, decay_k = -self.g.exp(), -self.gk.exp()
        rows = of_values(q), of_values(k), v
        for operator in (fla.chunk_simple_gla, fla.fused_recurrent_simple_gla):
            self.check(operator(q, k, v, decay, **more), recurrence(*rows, decay, state=s), q, k, v, s, self.g)
        gamma = -self.g[0, 0].exp()
        self.check(fla.chunk_simple_gla(q, k, v, g_gamma=gamma, **more), recurrence(*rows, gamma.expand(B, T, HV), state=s), q, self.g)
        for operator in (fla.chunk_gla, lambda q, k, v, g, **more: fla.fused_recurrent_gla(q, k, v, gk=g, **more)):
            self.check(operator(q, k, v, decay_k, **more), recurrence(*rows, decay_k, state=s), q, k, v, s, self.gk)
        of_head = (1 - 2.0 ** (-5.0 - torch.arange(HV, **f64))).log()
        self.check(fla.chunk_retention(q, k, v, **more), recurrence(*rows, of_head.expand(B, T, HV), state=s), q, k, v, s)
        of_head = -(8 / HV * (1 - 3 / 12)) * torch.arange(HV, **f64)
        self.check(fla.chunk_lightning_attn(q, k, v, 3, 12, **more), recurrence(*rows, of_head.expand(B, T, HV), state=s), q, k, v, s)

    def test_v_first(self):
        o, s = fla.chunk_gla(self.q, self.k, self.v, -self.gk.exp(), initial_state=self.state.transpose(2, 3), output_final_state=True, state_v_first=True)
        o2, s2 = fla.chunk_gla(self.q, self.k, self.v, -self.gk.exp(), initial_state=self.state, output_final_state=True)
        self.assertTrue(torch.equal(o, o2) and torch.equal(s.transpose(2, 3), s2))

    def test_linear(self):
        q, k, v = self.q.exp(), self.k.exp(), self.v
        total = (of_values(q) * of_values(k).cumsum(1)).sum(-1, keepdim=True) * K**-0.5
        want, s = recurrence(of_values(q), of_values(k), v)
        rows = of_values(q), of_values(k), v
        o, (state, of_sum) = fla.chunk_linear_attn(*rows, output_final_state=True)
        self.check((o, state), (want / (total + 1e-10), s), self.q, self.k, self.v)
        torch.testing.assert_close(of_sum, of_values(k).sum(1, keepdim=True))
        first, pair = fla.chunk_linear_attn(*(x[:, :4] for x in rows), output_final_state=True)
        rest, _ = fla.chunk_linear_attn(*(x[:, 4:] for x in rows), initial_state=pair)
        torch.testing.assert_close(torch.cat([first, rest], 1), o)
        self.check(fla.fused_recurrent_linear_attn(*rows, output_final_state=True), (want, s), self.q)

    def test_deltas(self):
        q, k, v, s = self.q, self.k, self.v, self.state
        more = {"initial_state": s, "output_final_state": True, "use_qk_l2norm_in_kernel": True}
        nq, nk, beta = of_values(norm(q)), of_values(norm(k)), self.beta.sigmoid()
        decay, decay_k, r = -self.g.exp(), -self.gk.exp(), beta[..., None] * nk
        leaves = q, k, v, s, self.beta
        self.check(fla.chunk_delta_rule(q, k, v, beta, **more), recurrence(nq, nk, v, None, beta, r, state=s), *leaves)
        self.check(fla.chunk_gated_delta_rule(q, k, v, decay, beta, **more), recurrence(nq, nk, v, decay, beta, r, state=s), *leaves, self.g)
        logit = fla.fused_recurrent_gated_delta_rule(q, k, v, g=decay, beta=self.beta, use_beta_sigmoid_in_kernel=True, allow_neg_eigval=True, **more)
        self.check(logit, recurrence(nq, nk, v, decay, 2 * beta, 2 * r, state=s), *leaves, self.g)
        self.check(fla.chunk_kda(q, k, v, decay_k, beta, **more), recurrence(nq, nk, v, decay_k, beta, r, state=s), *leaves, self.gk)
        A_log, bias = rand(HV), rand(HV * K)
        gate = {"use_gate_in_kernel": True, "A_log": A_log, "dt_bias": bias}
        decay = -A_log.exp()[:, None] * F.softplus(self.gk + bias.view(HV, K))
        self.check(fla.fused_recurrent_kda(q, k, v, self.gk, beta, **gate, **more), recurrence(nq, nk, v, decay, beta, r, state=s), *leaves, A_log, bias, self.gk)
        bounded = -5 * torch.sigmoid(A_log.exp()[:, None] * (self.gk + bias.view(HV, K)))
        found = fla.chunk_kda(q, k, v, self.gk, beta, safe_gate=True, lower_bound=-5.0, **gate, **more)
        self.check(found, recurrence(nq, nk, v, bounded, beta, r, state=s), *leaves, A_log, bias, self.gk)

    def test_halves_are_not_rounded_again(self):
        """Decays and strengths of inputs in a half type are made in float32, as fla's kernels make them."""
        half = {"dtype": torch.bfloat16}
        q, k, v, g, beta, A_log = (x.detach().to(**half) for x in (self.q, self.k, self.v, self.gk, self.beta, rand(HV)))
        made = {"use_beta_sigmoid_in_kernel": True, "allow_neg_eigval": True, "use_gate_in_kernel": True, "lower_bound": -5.0, "safe_gate": True}
        decay, strength = -5 * torch.sigmoid(A_log.float().exp()[:, None] * g.float()), 2 * beta.float().sigmoid()
        for found, want in (
            (fla.chunk_kda(q, k, v, g, beta, A_log=A_log, **made), fla.chunk_kda(q, k, v, decay, strength)),
            (
                fla.chunk_gated_delta_rule(q, k, v, g[..., 0], beta, A_log=A_log, use_gate_in_kernel=True, use_beta_sigmoid_in_kernel=True),
                fla.chunk_gated_delta_rule(q, k, v, -A_log.float().exp() * F.softplus(g[..., 0].float()), beta.float().sigmoid()),
            ),
        ):
            torch.testing.assert_close(found[0], want[0], rtol=0, atol=0)
        self.assertFalse(torch.equal(fla.chunk_kda(q, k, v, decay, strength)[0], fla.chunk_kda(q, k, v, decay, strength.to(**half))[0]))

    def test_other_vectors(self):
        q, k, v, s, p = self.q, self.k, self.v, self.state, rand(B, T, H, K)
        decay, beta = -self.g.exp(), self.beta.sigmoid()
        r = beta[..., None] * of_values(norm(p))
        want = recurrence(of_values(norm(q)), of_values(norm(k)), v, decay, beta, r, before=True, state=s)
        more = {"initial_state": s, "output_final_state": True, "use_qk_l2norm_in_kernel": True}
        self.check(fla.chunk_comba(q, k, v, p, decay, beta, **more), want, q, k, v, s, p, self.g, self.beta)
        self.check(fla.fused_recurrent_comba(q, k, p, v, decay, beta, **more), want, q, k, v, s, p, self.g, self.beta)
        q, k, a, b = (rand(B, T, HV, K) for _ in "qkab")
        want = recurrence(q, k, v, -self.gk.exp(), None, -a, b / 3, True, s, 1.0)
        found = fla.chunk_rwkv7(q, -self.gk.exp(), k, v, a, b / 3, initial_state=s, output_final_state=True)
        self.check(found, want, q, k, v, a, b, s, self.gk)

    def test_older_name(self):
        call = (self.q, self.k, self.v, -self.gk.exp())
        want = fla.chunk_gla(*call, output_final_state=True, state_v_first=True)
        with self.assertWarnsRegex(DeprecationWarning, "gla: transpose_state_layout is an older name of state_v_first"):
            found = fla.chunk_gla(*call, output_final_state=True, transpose_state_layout=True)
        self.assertTrue(all(torch.equal(a, b) for a, b in zip(found, want)))
        with self.assertRaisesRegex(ValueError, "kda: transpose_state_layout: .* both are given"):
            fla.chunk_kda(*call, self.beta, state_v_first=True, transpose_state_layout=True)

    def test_types_apart(self):
        q, k, v = self.q.detach().float(), self.k.detach().float(), self.v.detach().half()
        o, _ = fla.chunk_gated_delta_rule(q, k, v, -self.g.exp(), self.beta.sigmoid())
        want, _ = fla.chunk_gated_delta_rule(q, k, v.float(), -self.g.exp(), self.beta.sigmoid())
        self.assertTrue(o.dtype is torch.float16 and torch.equal(o, want.half()))

    def test_channels_by_eights(self):
        q, k, v, state = rand(B, T, H, 20), rand(B, T, H, 20), rand(B, T, HV, 18), rand(B, HV, 20, 18)
        gk, beta = rand(B, T, HV, 20), rand(B, T, HV)
        leaves = (q, k, v, gk, beta, state)

        def calls():
            yield fla.chunk_kda(q, k, v, -gk.exp(), beta, initial_state=state, output_final_state=True, use_qk_l2norm_in_kernel=True)
            yield fla.chunk_kda(q, k, v, -gk.exp(), beta, initial_state=state.transpose(2, 3), output_final_state=True, state_v_first=True)
            yield fla.chunk_comba(q, k, v, None, -gk[..., 0].exp(), beta, initial_state=state, output_final_state=True)
            yield fla.chunk_rwkv7(of_values(q), -gk.exp(), of_values(k), v, -gk, beta[..., None] * gk, initial_state=state, output_final_state=True)

        want = list(calls())
        with unittest.mock.patch.object(fla, "_wants_eights", lambda x: True):
            for found, wanted in zip(calls(), want):
                self.assertEqual([x.shape for x in found], [x.shape for x in wanted])
                self.check(found, wanted, *leaves)

    def test_packed(self):
        cu = torch.tensor([0, 4, 4, 9])
        rows = [x[:1].detach() for x in (self.q, self.k, self.v, -self.g.exp(), self.beta.sigmoid())]
        o, s = fla.chunk_gated_delta_rule(*rows, output_final_state=True, cu_seqlens=cu, cu_seqlens_cpu=cu)
        for n, (first, end) in enumerate(((0, 4), (4, 4), (4, 9))):
            alone, last = fla.chunk_gated_delta_rule(*(x[:, first:end] for x in rows), output_final_state=True)
            self.assertTrue(torch.equal(o[:, first:end], alone) and torch.equal(s[n], last[0]))

    def test_refusals(self):
        q, k, v, g = self.q, self.k, self.v, self.g
        for words, call in (
            ("gla: reverse: is True; a sequence is taken from its beginning", lambda: fla.fused_recurrent_gla(q, k, v, self.gk, reverse=True)),
            ("gla: gv: is a tensor of float64; a decay of channels of v", lambda: fla.fused_recurrent_gla(q, k, v, gv=v)),
            ("gated_delta_rule: gk: is a tensor", lambda: fla.fused_recurrent_gated_delta_rule(q, k, v, gk=self.gk)),
            ("kda: cp_context: is 3", lambda: fla.chunk_kda(q, k, v, self.gk, self.beta, cp_context=3)),
            ("kda: chunk_size: is 48; give 32 or 64", lambda: fla.chunk_kda(q, k, v, self.gk, self.beta, chunk_size=48)),
            ("rwkv7: chunk_size: is 3; give 16 or 32", lambda: fla.chunk_rwkv7(q, self.gk, q, v, q, q, chunk_size=3)),
            ("kda: chunk_size: is 32, and states are kept every 64", lambda: fla.chunk_kda(*(x.detach() for x in (q, k, v, self.gk, self.beta)), chunk_size=32, return_intermediate_states=True)),
            ("simple_gla: head_first: is True; tensors are [B, T, H, ..]", lambda: fla.chunk_simple_gla(q, k, v, g, head_first=True)),
            ("simple_gla: speed: is no argument", lambda: fla.chunk_simple_gla(q, k, v, g, speed=1)),
            ("delta_rule: beta: has (2, 9, 4, 3); one for each channel of v", lambda: fla.chunk_delta_rule(q, k, v, v)),
            ("allow_neg_eigval: goes with use_beta_sigmoid_in_kernel", lambda: fla.chunk_kda(q, k, v, self.gk, self.beta, allow_neg_eigval=True)),
            ("gated_delta_rule: g: is missing, and use_gate_in_kernel", lambda: fla.chunk_gated_delta_rule(q, k, v, None, self.beta, use_gate_in_kernel=True, A_log=rand(HV))),
            ("gated_delta_rule: beta: is missing, and use_beta_sigmoid", lambda: fla.chunk_gated_delta_rule(q, k, v, g, use_beta_sigmoid_in_kernel=True)),
            ("kda: beta: is a list of 2, expected a tensor of torch", lambda: fla.chunk_kda(q, k, v, self.gk, [g, g])),
            ("gla: initial_state: is a list of 1, expected a tensor of torch", lambda: fla.chunk_gla(q, k, v, self.gk, initial_state=[v])),
            ("linear_attn: normalize: divides heads of v by sums of k, and v has 4 heads and k 2", lambda: fla.chunk_linear_attn(q, k, v)),
            ("kda: A_log: is given, and use_gate_in_kernel is False", lambda: fla.chunk_kda(q, k, v, self.gk, self.beta, A_log=rand(HV))),
            ("gated_delta_rule: dt_bias: is given, and use_gate_in_kernel", lambda: fla.chunk_gated_delta_rule(q, k, v, g, self.beta, dt_bias=rand(HV))),
            ("kda: A_log: has 3 numbers, expected 4, as g (2, 9, 4, 5) has them", lambda: fla.chunk_kda(q, k, v, self.gk, self.beta, use_gate_in_kernel=True, A_log=rand(3))),
            ("kda: dt_bias: has 5 numbers", lambda: fla.chunk_kda(q, k, v, self.gk, self.beta, use_gate_in_kernel=True, A_log=rand(HV), dt_bias=rand(5))),
            ("kda: lower_bound: is missing, and safe_gate", lambda: fla.chunk_kda(q, k, v, self.gk, self.beta, use_gate_in_kernel=True, A_log=rand(HV), safe_gate=True)),
            ("kda: A_log: is missing", lambda: fla.chunk_kda(q, k, v, self.gk, self.beta, use_gate_in_kernel=True)),
        ):
            with self.subTest(words), self.assertRaises(luattn.Error) as caught:
                call()
            self.assertIn(words, str(caught.exception))


class Mamba(unittest.TestCase):
    def setUp(self):
        torch.manual_seed(2)
        self.x, self.dt, self.A, self.D = rand(B, T, HV, V), rand(B, T, HV), rand(HV), rand(HV, V)
        self.B, self.C, self.state = rand(B, T, H, K), rand(B, T, H, K), rand(B, HV, V, K)
        self.bias, self.z = rand(HV), rand(B, T, HV, V)

    def want(self, rows, state):
        """The state recurrence of rows (x, dt, B, C)."""
        x, dt, b, c = rows
        step = F.softplus(dt + self.bias)
        o, s = recurrence(of_values(c), of_values(b), step[..., None] * x, -self.A.exp() * step, state=None if state is None else state.transpose(2, 3), scale=1.0)
        return o + self.D * x, s.transpose(2, 3)

    def scan(self, **more):
        args = self.x, self.dt, -self.A.exp(), self.B, self.C
        return fla.mamba_chunk_scan_combined(*args, 64, D=self.D, dt_bias=self.bias, dt_softplus=True, **more)

    def test_scan(self):
        found = self.scan(initial_states=self.state, return_final_states=True)
        want = self.want((self.x, self.dt, self.B, self.C), self.state)
        ways = [torch.randn_like(x) for x in want]
        leaves = (self.x, self.dt, self.A, self.B, self.C, self.D, self.bias, self.state)
        for a, b in zip(found, want):
            torch.testing.assert_close(a, b, rtol=0, atol=1e-11)
        for a, b in zip(*(torch.autograd.grad(list(x), leaves, ways) for x in (found, want))):
            torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-10)
        torch.testing.assert_close(self.scan(z=self.z), self.scan() * F.silu(self.z), rtol=0, atol=1e-12)

    def test_steps(self):
        """Steps without a bias, without softplus and within limits: o and all gradients as of steps that torch makes."""
        for softplus, has_bias, limit in ((True, False, None), (False, True, None), (False, False, None), (True, True, (0.2, 0.9)), (False, False, (0.1, 0.8))):
            step = self.dt + self.bias if has_bias else self.dt
            step = F.softplus(step) if softplus else step
            step = step if limit is None else step.clamp(*limit)
            fixed = self.x, -self.A.exp(), self.B, self.C
            want = fla.mamba_chunk_scan_combined(self.x, step, *fixed[1:], 64)
            more = {} if limit is None else {"dt_limit": limit}
            with self.subTest(softplus=softplus, has_bias=has_bias, limit=limit):
                found = fla.mamba_chunk_scan_combined(self.x, self.dt, *fixed[1:], 64, dt_bias=self.bias if has_bias else None, dt_softplus=softplus, **more)
                leaves = (self.x, self.dt, self.A, self.B, self.C, *([self.bias] if has_bias else []))
                way = torch.randn_like(found)
                torch.testing.assert_close(found, want, rtol=0, atol=1e-11)
                for a, b in zip(*(torch.autograd.grad(o, leaves, way, retain_graph=True) for o in (found, want))):
                    torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-10)

    def test_steps_below_0(self):
        """A scan takes them as 0, whose gradient is 0, as mamba-ssm's default of dt_limit does; one token takes them as they are, as its update does."""
        dt, A = self.dt.detach() - 0.5, -self.A.exp().detach()
        self.assertTrue((dt < 0).any() and (dt > 0).any())
        step, of_limit = (dt.clone().requires_grad_() for _ in range(2))
        x, b, c = (t.detach() for t in (self.x, self.B, self.C))
        kept = of_limit.clamp(min=0)
        want, _ = recurrence(of_values(c), of_values(b), kept[..., None] * x, A * kept, scale=1.0)
        found = fla.mamba_chunk_scan_combined(x, step, A, b, c, 64)
        torch.testing.assert_close(found, want, rtol=0, atol=1e-11)
        way = torch.randn_like(want)
        torch.testing.assert_close(*(torch.autograd.grad(o, d, way)[0] for o, d in ((found, step), (want, of_limit))), rtol=1e-9, atol=1e-10)
        one, state = [t[:, :1] for t in (c, b, x, dt)], torch.zeros(B, HV, V, K, **f64)
        want, _ = recurrence(of_values(one[0]), of_values(one[1]), one[3][..., None] * one[2], A * one[3], scale=1.0)
        wide = one[3][:, 0, :, None].expand(B, HV, V), A[:, None, None].expand(HV, V, K)
        o = fla.selective_state_update(state, one[2][:, 0], *wide, one[1][:, 0], one[0][:, 0])
        torch.testing.assert_close(o, want[:, 0], rtol=0, atol=1e-11)

    def test_heads_that_skip(self):
        D = torch.rand(HV, **f64)
        args = self.x, self.dt, -self.A.exp(), self.B, self.C, 64
        want = fla.mamba_chunk_scan_combined(*args) + D[:, None] * self.x
        torch.testing.assert_close(fla.mamba_chunk_scan_combined(*args, D=D), want, rtol=0, atol=1e-12)

    def test_refusals(self):
        """A list of sequences, a gate or a step of other shapes would be read, or broadcast, and be wrong without a word."""
        for words, given in (
            ("seq_idx: has shape (2, 8), expected (2, 9)", {"seq_idx": torch.zeros(2, T - 1, dtype=torch.int32)}),
            ("seq_idx: has shape (9,)", {"seq_idx": torch.zeros(T, dtype=torch.int32)}),
            ("z: has shape (9, 4, 3), expected (2, 9, 4, 3)", {"z": self.z[0]}),
            ("seq_idx: is [0, 1], expected a tensor", {"seq_idx": [0, 1]}),
            ("seq_idx: is missing, and cu_seqlens or return_varlen_states", {"cu_seqlens": torch.tensor([0, 9])}),
            ("cu_seqlens: does not have the 2 sequences", {"seq_idx": torch.zeros(B, T, dtype=torch.int32), "return_varlen_states": True}),
        ):
            with self.subTest(words), self.assertRaises(luattn.InvalidError) as caught:
                self.scan(**given)
            self.assertIn(words, str(caught.exception))
        x, dt, b, c = (t[:, 0].detach() for t in (self.x, self.dt, self.B, self.C))
        A = (-self.A.exp()).detach()[:, None, None].expand(HV, V, K)
        step = self.state.detach().clone(), x, dt[..., None].expand(B, HV, V), A, b, c
        with self.assertRaisesRegex(luattn.Unsupported, "state_dtype: is torch.float32; states stay in registers, and meet C rounded to x's torch.float64"):
            self.scan(state_dtype=torch.float32)
        self.scan(state_dtype=self.x.dtype)
        with self.assertRaisesRegex(luattn.InvalidError, r"D: has shape \(3,\), expected \(4,\), one a head, or \(4, 3\)"):
            fla.mamba_chunk_scan_combined(self.x, self.dt, self.A, self.B, self.C, 64, D=torch.rand(V, **f64))
        with self.assertRaisesRegex(luattn.InvalidError, r"x: has 2 dimensions, expected 3"):
            fla.selective_state_update(step[0], x[:, 0], *step[2:])
        with self.assertRaisesRegex(luattn.Unsupported, "state: has 3 dimensions; one without heads is Mamba-1's"):
            fla.selective_state_update(step[0][:, 0], *step[1:])
        with self.assertRaisesRegex(luattn.InvalidError, "z: has shape .4, 3., expected .2, 4, 3."):
            fla.selective_state_update(*step, z=x[0])
        with self.assertRaisesRegex(luattn.InvalidError, "D: requires a gradient, and one token has none"):
            fla.selective_state_update(*step, D=self.D)
        with torch.no_grad():
            fla.selective_state_update(*step, D=self.D)

    def test_sequences_apart(self):
        idx = torch.tensor([[0, 0, 0, 1, 1, 1, 1, 2, 2], [0] * 9])
        o, last, all_states = self.scan(
            seq_idx=idx, initial_states=self.state, return_final_states=True, return_varlen_states=True, cu_seqlens=torch.tensor([0, 3, 7, 9, 18])
        )
        for row, first, end, has_state in ((0, 0, 3, True), (0, 3, 7, False), (0, 7, 9, False), (1, 0, 9, True)):
            rows = [x[row : row + 1, first:end] for x in (self.x, self.dt, self.B, self.C)]
            want, s = self.want(rows, self.state[row : row + 1] if has_state else None)
            torch.testing.assert_close(o[row : row + 1, first:end], want, rtol=0, atol=1e-11)
        torch.testing.assert_close(last[1:], s, rtol=0, atol=1e-11)
        self.assertEqual(len(all_states), 4)
        more = {"seq_idx": idx, "initial_states": self.state, "return_final_states": True, "return_varlen_states": True}
        for of_list, of_tensor in zip(self.scan(cu_seqlens=[0, 3, 7, 9, 18], **more), (o, last, all_states)):
            self.assertTrue(torch.equal(of_list, of_tensor))
        self.assertTrue(torch.equal(last, all_states[[2, 3]]))

    def test_sequences_whose_number_is_not_0(self):
        """As in mamba-ssm, whose first chunk compares with number 0: an entry that begins with another number has no initial state."""
        idx = torch.tensor([[3, 3, 3, 4, 4, 4, 4, 4, 4], [0] * 9])
        state = self.state.detach().clone()
        state[0] = torch.nan
        state.requires_grad_()
        o, last = self.scan(seq_idx=idx, initial_states=state, return_final_states=True)
        for row, first, end, has_state in ((0, 0, 3, False), (0, 3, 9, False), (1, 0, 9, True)):
            rows = [x[row : row + 1, first:end] for x in (self.x, self.dt, self.B, self.C)]
            want, _ = self.want(rows, self.state[row : row + 1] if has_state else None)
            torch.testing.assert_close(o[row : row + 1, first:end], want, rtol=0, atol=1e-11)
        o.sum().backward()
        self.assertTrue(not state.grad[0].any() and state.grad[1].isfinite().all() and state.grad[1].any())
        for words, rows in (("rows of one number lie apart", [0, 1, 1, 1, 0, 0, 0, 0, 0]), ("rows of one number lie apart", [-1, 0, 0, 0, 0, 0, 0, -1, -1]), ("number 0, to which initial_states belong", [1, 1, 1, 1, 0, 0, 0, 0, 0])):
            with self.assertRaisesRegex(luattn.InvalidError, f"mamba_chunk_scan_combined: seq_idx: {words}"):
                self.scan(seq_idx=torch.tensor([rows, [0] * 9]), initial_states=self.state)
        with self.assertRaisesRegex(luattn.InvalidError, "cu_seqlens: does not have the 3 sequences"):
            self.scan(seq_idx=idx, return_varlen_states=True, cu_seqlens=torch.tensor([0, 4, 9, 18]))

    def test_step(self):
        pool = torch.randn(5, HV, V, K, **f64)
        before, indices = pool.clone(), torch.tensor([4, -1])
        x, dt, b, c = (t[:, 0].detach() for t in (self.x, self.dt, self.B, self.C))
        A = (-self.A.exp()).detach()[:, None, None].expand(HV, V, K)
        more = {"D": self.D.detach(), "dt_bias": self.bias.detach()[:, None].expand(HV, V), "dt_softplus": True}
        o = fla.selective_state_update(pool, x, dt[..., None].expand(B, HV, V), A, b, c, state_batch_indices=indices, **more)
        want, s = self.want([t[:1, None] for t in (x, dt, b, c)], before[4:5])
        torch.testing.assert_close(o[:1], want[:, 0].detach())
        torch.testing.assert_close(pool[4], s[0].detach())
        self.assertTrue(torch.equal(pool[:4], before[:4]) and not o[1].any())
        one = [t[:, :1] for t in (b, c)]
        states = [torch.zeros(B, HV, V, K, **f64) for _ in range(2)]
        of_group, without = (fla.selective_state_update(s, x, dt[..., None].expand(B, HV, V), A, *rows) for s, rows in zip(states, (one, [t[:, 0] for t in one])))
        self.assertTrue(torch.equal(of_group, without) and torch.equal(*states))
        with self.assertRaisesRegex(luattn.Unsupported, "A: differs within a head, as Mamba-1's"):
            fla.selective_state_update(pool[:2], x, dt[..., None].expand(B, HV, V), -torch.rand(HV, V, K, **f64), b, c)
        with self.assertRaisesRegex(luattn.InvalidError, "D: has 1 dimensions, expected 2; repeat numbers of heads by expand"):
            fla.selective_state_update(pool[:2], x, dt[..., None].expand(B, HV, V), A, b, c, D=torch.rand(HV, **f64))


class OtherForms(unittest.TestCase):
    def test_import(self):
        """Operators that are no recurrence of this form say what they need, where they are imported, too."""
        for name, words in (("chunk_log_linear_attn", "a state for each level of a tree"), ("chunk_mesa_net", "a matrix that is inverted"),
                            ("chunk_gsa", "two states"), ("fused_recurrent_gsa", "two states"), ("chunk_ttt_linear", "a state that a nonlinear network updates"),
                            ("parallel_path_attn", "products of the transitions")):  # fmt: skip
            with self.subTest(name), self.assertRaisesRegex(luattn.Unsupported, f"luattn.fla: {name}: it needs {words}.*; take fla's own"):
                exec(f"from luattn.fla import {name}")
            with self.subTest(name):
                self.assertFalse(hasattr(fla, name))
                self.assertIsNone(getattr(fla, name, None))
            for error in (AttributeError, luattn.Unsupported):
                with self.subTest(name), self.assertRaisesRegex(error, f"luattn.fla: {name}: it needs {words}.*; take fla's own"):
                    getattr(fla, name)
            with self.subTest(name), self.assertRaisesRegex(ImportError, f"luattn.fla: {name}: it needs {words}.*; take fla's own") as caught:
                exec(f"from luattn.fla import {name}")
            self.assertEqual((caught.exception.msg, caught.exception.name), (str(caught.exception), "luattn.fla"))
            self.assertEqual(str(pickle.loads(pickle.dumps(caught.exception))), str(caught.exception))
        with self.assertRaisesRegex(AttributeError, "has no attribute 'chunk_nothing'"):
            fla.chunk_nothing

    def test_without_a_caller(self):
        """A thread that begins in C has no frame of Python around the name that it asks for."""
        seen, done = [], threading.Event()

        def keep(given):
            seen.append(given.exc_value)
            done.set()

        with unittest.mock.patch.object(sys, "unraisablehook", keep):
            _thread.start_new_thread(getattr, (fla, "chunk_gsa"))
            self.assertTrue(done.wait(30))
        self.assertIsInstance(seen[0], AttributeError)
        self.assertIn("luattn.fla: chunk_gsa: it needs two states", str(seen[0]))


if __name__ == "__main__":
    unittest.main()
