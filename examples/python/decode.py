"""A decode loop over a paged cache of keys and values: prompts of different lengths, then one token at a time for all of them. Blocks of the
cache are handed out as sequences grow. Prints how far the logits are from those of each whole sequence at once, and on a GPU tokens a second.

    python3 examples/python/decode.py               on a GPU, or small on the CPU

The weights are random: what is shown is the cache, not the text."""

import time

import torch
from torch import nn

from luattn.flash_attn import flash_attn_func, flash_attn_with_kvcache


class Cache:
    """The blocks of all layers; a block has the same number in each. A sequence has a row of the table."""

    def __init__(self, layers, blocks, size, heads, dim, batch, most, device, dtype):
        self.k, self.v = (torch.zeros(layers, blocks, size, heads, dim, device=device, dtype=dtype) for _ in "kv")
        self.size, self.free = size, list(range(blocks))
        self.table = torch.zeros(batch, -(-most // size), dtype=torch.int32)
        self.lengths = [0] * batch

    def reserve(self, new):
        """Blocks for `new` more rows of each sequence; the table and the lengths before, on the device."""
        for b, n in enumerate(self.lengths):
            for block in range(-(-n // self.size), -(-(n + new[b]) // self.size)):
                self.table[b, block] = self.free.pop()
        lengths = torch.tensor(self.lengths, dtype=torch.int32)
        self.lengths = [n + more for n, more in zip(self.lengths, new)]
        return self.table.to(self.k.device), lengths.to(self.k.device)


class Block(nn.Module):
    def __init__(self, dim, heads, heads_kv):
        super().__init__()
        self.heads, self.heads_kv = heads, heads_kv
        self.norms = nn.ModuleList(nn.RMSNorm(dim) for _ in range(2))
        self.qkv = nn.Linear(dim, dim // heads * (heads + 2 * heads_kv), bias=False)
        self.out, self.up, self.down = (nn.Linear(m, n, bias=False) for m, n in ((dim, dim), (dim, 4 * dim), (4 * dim, dim)))

    def forward(self, x, attend):
        """attend(q, k, v) of [batch, length, heads, head dim]."""
        qkv = self.qkv(self.norms[0](x)).unflatten(-1, (self.heads + 2 * self.heads_kv, -1))
        x = x + self.out(attend(*qkv.split((self.heads, self.heads_kv, self.heads_kv), 2)).flatten(2))
        return x + self.down(nn.functional.silu(self.up(self.norms[1](x))))


class Model(nn.Module):
    def __init__(self, words=512, dim=256, layers=2, heads=4, heads_kv=2, most=4096):
        super().__init__()
        self.embed = nn.Embedding(words, dim)
        self.blocks = nn.ModuleList(Block(dim, heads, heads_kv) for _ in range(layers))
        half = dim // heads // 2
        angles = torch.outer(torch.arange(most), 10000.0 ** (-torch.arange(half) / half))
        self.register_buffer("cos", angles.cos()), self.register_buffer("sin", angles.sin())

    def whole(self, tokens):
        """Logits of all tokens [batch, length], without a cache."""
        x, n = self.embed(tokens), tokens.shape[1]
        cos, sin = (t[:n, None] for t in (self.cos, self.sin))

        def rotated(t):
            a, b = t.chunk(2, -1)
            return torch.cat((a * cos - b * sin, a * sin + b * cos), -1)

        for block in self.blocks:
            x = block(x, lambda q, k, v: flash_attn_func(rotated(q), rotated(k), v, causal=True))
        return x @ self.embed.weight.T

    def step(self, tokens, cache):
        """Logits of new tokens [batch, new], which go into the cache."""
        table, lengths = cache.reserve([tokens.shape[1]] * len(tokens))
        return self._with_cache(tokens, cache, table, lengths)

    def _with_cache(self, tokens, cache, table, lengths):
        x = self.embed(tokens)
        cos, sin = (t[: table.shape[1] * cache.size] for t in (self.cos, self.sin))
        for i, block in enumerate(self.blocks):
            x = block(x, lambda q, k, v, i=i: flash_attn_with_kvcache(
                q, cache.k[i], cache.v[i], k, v, cos, sin, lengths, block_table=table, causal=True, rotary_interleaved=False
            ))  # fmt: skip
        return x @ self.embed.weight.T

    def prefill(self, prompt, b, cache):
        """The logits of sequence b's prompt, a row of tokens."""
        table, lengths = cache.reserve([len(prompt) * (i == b) for i in range(len(cache.lengths))])
        return self._with_cache(prompt[None], cache, table[b : b + 1], lengths[b : b + 1])


@torch.no_grad()
def generate(device, dtype, prompts, new, size, **sizes):
    """Tokens of each prompt and `new` more; the distance of the logits from whole sequences; seconds of a step."""
    torch.manual_seed(1)
    model = Model(**sizes).to(device, dtype)
    batch, most, layers = len(prompts), max(prompts) + new, len(model.blocks)
    heads_kv, dim = model.blocks[0].heads_kv, model.embed.weight.shape[1] // model.blocks[0].heads
    blocks = sum(-(-(n + new) // size) for n in prompts)
    cache = Cache(layers, blocks, size, heads_kv, dim, batch, most, device, dtype)
    texts = [torch.randint(len(model.embed.weight), (n,), device=device) for n in prompts]
    logits = torch.stack([model.prefill(text, b, cache)[0, -1] for b, text in enumerate(texts)])
    found = [logits]
    start = time.perf_counter()
    for _ in range(new):
        chosen = logits.argmax(-1)
        texts = [torch.cat((text, chosen[b : b + 1])) for b, text in enumerate(texts)]
        logits = model.step(chosen[:, None], cache)[:, 0]
        found.append(logits)
    if device == "cuda":
        torch.cuda.synchronize()
    seconds = (time.perf_counter() - start) / new
    apart = 0.0
    for b, text in enumerate(texts):
        want = model.whole(text[None])[0, prompts[b] - 1 :]
        apart = max(apart, ((torch.stack([x[b] for x in found]) - want).norm() / want.norm()).item())
    return texts, apart, seconds


if __name__ == "__main__":
    if torch.cuda.is_available():
        sizes = dict(words=32000, dim=2048, layers=8, heads=16, heads_kv=4)
        texts, apart, seconds = generate("cuda", torch.bfloat16, [700, 1500, 64, 2000] * 4, 64, 64, **sizes)
    else:
        texts, apart, seconds = generate("cpu", torch.float32, [7, 20, 1], 8, 16)
    print(f"{len(texts)} sequences of {', '.join(str(len(t)) for t in texts[:4])}, .. tokens: logits are {apart:.1e} from whole sequences'")
    print(f"{len(texts) / seconds:.0f} tokens a second")
