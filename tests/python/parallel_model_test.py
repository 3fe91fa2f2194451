"""parallel_model_test.py: models of transformers over two processes beside one: Gemma 3's and gpt-oss' patterns, of the example, have the same losses, and gpt-oss' sinks
and windows the same logits and gradients; what models over ranks refuse. On the CPU. Exits with 77 where torch or transformers is not installed."""

import os
import sys
import tempfile
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path[:0] = [f"{ROOT}/python", f"{ROOT}/examples/python"]
try:
    import torch
    import transformers as hf
except ImportError as e:
    print(f"{e}: skipped")
    sys.exit(77)
import luattn  # noqa: E402
import torch.distributed as dist  # noqa: E402
import train_over_ranks  # noqa: E402

hf.logging.set_verbosity_error()
LENGTH, RANKS = 300, 2
MASKS = [f"return attention {{ name = '{name}', block_mask = function(b, h, q, k) return {keeps} end }}" for name, keeps in (("window", "k <= q and q - k < 90"), ("full", "k <= q"))]


def make(implementation):
    config = hf.GptOssConfig(
        vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=8, num_local_experts=2,
        num_experts_per_tok=1, layer_types=["sliding_attention", "full_attention"], sliding_window=90, bos_token_id=1, eos_token_id=2, pad_token_id=0,
    )  # fmt: skip
    torch.manual_seed(0)
    model = hf.GptOssForCausalLM._from_config(config, attn_implementation=implementation, experts_implementation="eager").double()
    for name, parameter in model.named_parameters():
        if name.endswith("sinks"):
            torch.nn.init.normal_(parameter)
    return model.eval()


def run(model, tokens, weights, **given):
    logits = model(input_ids=tokens, attention_mask=torch.ones_like(tokens), use_cache=False, **given).logits
    (logits * weights).sum().backward()
    return logits.detach(), {name: p.grad for name, p in model.named_parameters()}


def problem():
    torch.manual_seed(4)
    return torch.randint(3, 64, (1, LENGTH)), torch.randn(1, LENGTH, 64, dtype=torch.float64)


def work(rank, path):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=RANKS)
    plan = luattn.parallel.plan(MASKS, LENGTH, RANKS, heads=(4, 2), head_dim=8)
    luattn.transformers.register("over", context_parallel=plan)
    tokens, weights = problem()
    own, positions = plan.shard(tokens, rank, 1, fill=1), plan.positions(rank)[None]
    model = make("over")
    logits, grads = run(model, own, plan.shard(weights, rank, 1), position_ids=positions.clamp(max=LENGTH - 1))
    parts = [torch.empty_like(logits) for _ in range(RANKS)]
    dist.all_gather(parts, logits)
    for g in grads.values():
        dist.all_reduce(g)
    if rank == 0:
        torch.save((plan.unshard(parts, 1), grads), f"{path}.found")
    refused = {
        "pass shard(input_ids), and no cache": lambda: model(input_ids=tokens, attention_mask=torch.ones_like(tokens)),
        "leaves out tokens": lambda: model(input_ids=own, attention_mask=torch.zeros_like(own), position_ids=positions, use_cache=False),
        "attention_mask: is not of the whole sequence": lambda: model(input_ids=own, attention_mask=torch.zeros(1, 1, plan.rows, plan.rows), position_ids=positions, use_cache=False),
        "attention_mask: is None, with which transformers takes positions that jump": lambda: model(input_ids=own, position_ids=positions.flip(1), use_cache=False),
    }
    if rank:  # the first rank has the positions that a model takes where it is given none
        refused["position_ids: are 0, 1, .., as if this rank had the first tokens"] = lambda: model(input_ids=own, attention_mask=torch.ones_like(own), use_cache=False)
    refused["context_parallel: is 2, expected what luattn.parallel.plan"] = lambda: luattn.transformers.register("over", context_parallel=RANKS)
    for words, f in refused.items():
        try:
            f()
        except luattn.Error as e:
            assert words in str(e), e
        else:
            raise AssertionError(f"nothing was refused: {words}")
    dist.barrier()
    dist.destroy_process_group()


class Models(unittest.TestCase):
    def test_training(self):
        for name in train_over_ranks.LAYERS:
            with self.subTest(model=name):
                alone, over = train_over_ranks.compare(name, 2, 2)
                torch.testing.assert_close(torch.tensor(over), torch.tensor(alone), rtol=0, atol=1e-12)
                self.assertNotEqual(alone[0], alone[1])

    def test_gpt_oss(self):
        luattn.transformers.register("luattn")
        tokens, weights = problem()
        want, want_grads = run(make("luattn"), tokens, weights)
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "store")
            torch.multiprocessing.spawn(work, (path,), nprocs=RANKS)
            got, grads = torch.load(f"{path}.found")
        torch.testing.assert_close(got, want, rtol=0, atol=1e-12)
        for name, g in want_grads.items():
            torch.testing.assert_close(grads[name], g, rtol=1e-10, atol=1e-11, msg=lambda text: f"{name}: {text}")


if __name__ == "__main__":
    unittest.main()
