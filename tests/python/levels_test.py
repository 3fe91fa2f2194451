"""Levels of torch.func around calls that have no derivative there: refused by name, where they would find one of 0."""

import unittest

from problems import torch  # exits without torch, so first

import luattn
from luattn import fla, flash_attn, flex, natten
from torch.func import grad, jacrev, jvp, vjp, vmap

LENGTHS = torch.tensor([3, 5], dtype=torch.int32)
CAUSAL = luattn.attention("causal")


def rand(*shape):
    return torch.randn(*shape, dtype=torch.float64)


class Levels(unittest.TestCase):
    def refused(self, said, transform, call, *given):
        with self.assertRaisesRegex(luattn.Unsupported, said):
            transform(call)(*given)

    def test_cache(self):
        q, k_cache, v_cache, new = rand(2, 1, 2, 8), rand(2, 8, 2, 8), rand(2, 8, 2, 8), rand(2, 1, 2, 8)

        def of_cache(q, k_cache, v_cache, sinks=None):
            return flash_attn.flash_attn_with_kvcache(q, k_cache, v_cache, cache_seqlens=LENGTHS, s_aux=sinks).sum()

        def of_rows(new):
            return flash_attn.flash_attn_with_kvcache(q, k_cache.clone(), v_cache.clone(), new, new, cache_seqlens=LENGTHS).sum()

        said = "flash_attn_with_kvcache: transforms of torch.func .* do not exist for it: flash_attn_func"
        for i in range(3):
            self.refused(said, lambda f, i=i: grad(f, i), of_cache, q, k_cache, v_cache)
        self.refused(said, lambda f: grad(f, 3), of_cache, q, k_cache, v_cache, rand(2))
        self.refused(said, jacrev, of_cache, q, k_cache, v_cache)
        self.refused(said, lambda f: lambda *args: vjp(f, *args), of_cache, q, k_cache, v_cache)
        self.refused(said, lambda f: vmap(f, (0, None, None)), of_cache, q[None], k_cache, v_cache)
        self.refused(said, grad, of_rows, new)
        self.refused(said, vmap, of_rows, new[None])
        self.refused(said, grad, torch.compile(lambda q: of_cache(q, k_cache, v_cache), backend="eager"), q)

    def test_cache_under_no_grad(self):
        q, cache = rand(2, 1, 2, 8), rand(2, 8, 2, 8)

        def weighted(x):
            with torch.no_grad():
                o = flash_attn.flash_attn_with_kvcache(x, cache, cache, cache_seqlens=LENGTHS)
            return (x * o).sum()

        torch.testing.assert_close(grad(weighted)(q), flash_attn.flash_attn_with_kvcache(q, cache, cache, cache_seqlens=LENGTHS))

    def test_what_is_constant(self):
        """Tensors that a level wraps and does not differentiate."""
        q, cache = rand(2, 1, 2, 8), rand(2, 8, 2, 8)
        o = flash_attn.flash_attn_with_kvcache(q, cache, cache)
        k = cache.transpose(1, 2)
        weights = CAUSAL.weights(k, k, k)
        out, lse = CAUSAL(k, k, k, return_lse=True)
        dq = CAUSAL.gradients(out, k, k, k, out, lse)[0]

        def swapped(x):  # which a level wraps
            heads_first = cache.transpose(1, 2)
            return flash_attn.flash_attn_with_kvcache(q, heads_first.transpose(1, 2), heads_first.transpose(1, 2)).sum() * x.sum()

        def detached(x):
            return flash_attn.flash_attn_with_kvcache(x.detach(), cache, cache.clone()).sum() * x.sum()

        for name, call in (("swapped", swapped), ("detached", detached)):
            want = torch.full_like(q, o.sum().item())
            for transform, results in (
                (grad, lambda f: grad(f)(q)), (jacrev, lambda f: jacrev(f)(q)), (vjp, lambda f: vjp(f, q)[1](torch.ones((), dtype=q.dtype))[0]),
                (jvp, lambda f: jvp(f, (q,), (torch.ones_like(q),))[1] / q.numel() + torch.zeros_like(q)),
                ("grad of grad", lambda f: grad(lambda x: (grad(f)(x) * x).sum())(q)),
            ):  # fmt: skip
                with self.subTest(name, transform=str(transform)):
                    torch.testing.assert_close(results(f=call), want)
        torch.testing.assert_close(grad(lambda x: (CAUSAL.weights(x.detach(), x.detach(), x.detach()) * x.sum()).sum())(k), torch.full_like(k, weights.sum().item()))
        found = grad(lambda x: CAUSAL.gradients(out, x.detach(), k.clone(), k, out, lse)[0].sum() * x.sum())(k)
        torch.testing.assert_close(found, torch.full_like(k, dq.sum().item()))

    def test_what_is_differentiated(self):
        q, x = rand(2, 1, 2, 8), rand(1, 2, 4, 8)
        cache = rand(2, 8, 2, 8)
        o, lse = CAUSAL(x, x, x, return_lse=True)
        for said, call, at in (
            ("flash_attn_with_kvcache: ", lambda q: flash_attn.flash_attn_with_kvcache(q, cache, cache).sum(), q),
            ("causal: gradients: ", lambda q: CAUSAL.gradients(o, q, x, x, o, lse)[0].sum(), x),
            ("causal: weights: ", lambda q: CAUSAL.weights(q, x, x).sum(), x),
        ):
            for name, transform in (
                ("grad", grad), ("vjp", lambda f: lambda q: vjp(f, q)), ("jacrev", jacrev), ("vmap of grad", lambda f: lambda q: vmap(grad(f))(q[None])),
                ("grad of vmap", lambda f: grad(lambda q: vmap(f)(q[None]).sum())), ("grad of grad", lambda f: grad(lambda q: grad(f)(q).sum())),
                ("grad around another", lambda f: grad(lambda q: grad(lambda y: f(q) * y)(torch.ones(())))),
            ):  # fmt: skip
                with self.subTest(said, transform=name):
                    self.refused(said + "transforms of torch.func", transform, call, at)
            with self.subTest(said, transform="jvp"):
                self.refused(said + "has no forward-mode derivative", lambda f, at=at: lambda q: jvp(f, (q,), (at,)), call, at)

    def test_memory(self):
        """Of a wrapped tensor, which is not written: the refusal names that, where no derivative is asked for."""
        q, cache, rows = rand(2, 1, 2, 8), rand(2, 8, 2, 8), rand(2, 1, 2, 8)

        def called(new):
            with torch.no_grad():
                return flash_attn.flash_attn_with_kvcache(q, cache.clone(), cache.clone(), new, new, cache_seqlens=LENGTHS).sum()

        def appended(new):
            heads_first = cache.transpose(1, 2)
            CAUSAL.append(heads_first, heads_first, new.detach().transpose(1, 2), new.detach().transpose(1, 2), seqused_k=LENGTHS)
            return new.sum()

        said = ": it writes rows in place, and a transform of torch.func has wrapped a tensor, .*: call it outside of the transform"
        self.refused("flash_attn_with_kvcache" + said, grad, called, rows)
        self.refused("causal: append" + said, grad, appended, rows)

    def test_rows_of_a_cache(self):
        k, rows = rand(2, 2, 8, 8), rand(2, 2, 1, 8)

        def written(rows):
            CAUSAL.append(k.clone(), k.clone(), rows, rows, seqused_k=LENGTHS)
            return rows.sum()

        for transform, x in ((grad, rows), (vmap, rows[None])):
            self.refused("causal: append: transforms of torch.func .*outside of the transform", transform, written, x)

    def test_gradients_and_weights(self):
        q, k = rand(1, 2, 4, 8), rand(1, 2, 4, 8)
        o, lse = CAUSAL(q, k, k, return_lse=True)
        self.refused("causal: gradients: transforms of torch.func", grad, lambda dout: CAUSAL.gradients(dout, q, k, k, o, lse)[0].sum(), o)
        self.refused("causal: weights: transforms of torch.func", grad, lambda q: CAUSAL.weights(q, k, k).sum(), q)
        torch.testing.assert_close(vmap(lambda dout: CAUSAL.gradients(dout, q, k, k, o, lse)[0])(o[None])[0], CAUSAL.gradients(o, q, k, k, o, lse)[0])
        torch.testing.assert_close(vmap(lambda q: CAUSAL.weights(q, k, k))(q[None])[0], CAUSAL.weights(q, k, k))

    def test_what_is_not_mapped(self):
        q, o, lse = rand(1, 2, 6, 8), rand(1, 2, 6, 8), rand(1, 2, 6)
        self.refused("na_qk, na_av: torch.vmap: .*batch yourself", vmap, lambda q: natten.na1d_qk(q, q, 3), q[None])
        self.refused("merge: torch.vmap: .*batch yourself", vmap, lambda o: luattn.merge([o, o], [lse, lse])[0], o[None])

    def test_captured_tensors(self):
        """Of FlexAttention's mods, whose first call is within a level."""
        q, k, w, b = rand(3, 1, 2, 4, 8), rand(1, 2, 4, 8), rand(2), rand(2, 4, 4)

        def scaled(q, w):
            return flex.flex_attention(q, k, k, lambda s, _, h, i, j: s * w[h]).square().sum()

        def math(q, w):
            return torch.nn.functional.scaled_dot_product_attention(q * w[:, None, None], k, k).square().sum()

        for argnums in (1, 0, (0, 1)):
            torch.testing.assert_close(grad(scaled, argnums)(q[0], w), grad(math, argnums)(q[0], w))

        def biased(q):
            return flex.flex_attention(q, k, k, lambda s, _, h, i, j: s + b[h, i, j])

        torch.testing.assert_close(vmap(biased)(q)[2], torch.nn.functional.scaled_dot_product_attention(q[2], k, k, attn_mask=b))

    def test_linear(self):
        q = rand(1, 4, 2, 8)
        for transform, x in ((grad, q), (vmap, q[None])):
            self.refused("retention: transforms of torch.func .*use torch.autograd", transform, lambda q: fla.chunk_retention(q, q, q)[0].sum(), x)
        for i in range(3):
            given = [q, q, q]
            given[i] = given[i].long()
            with self.assertRaisesRegex(luattn.InvalidError, f"retention: {'qkv'[i]}: is a tensor of int64; convert it"):
                fla.chunk_retention(*given)


if __name__ == "__main__":
    unittest.main()
