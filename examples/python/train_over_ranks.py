"""train_over_ranks.py: trains a small Gemma 3 (five layers with a window to one without), and a small gpt-oss (every other one, and sinks in all), over the
ranks of a group, which share each sequence out, and in one process: the same losses.

    python3 examples/python/train_over_ranks.py [--models gemma3,gpt_oss] [--ranks 2] [--steps 3]

On GPUs start it by torchrun, with init_process_group("nccl"), and move the model and the tokens to each rank's GPU."""

import argparse
import os
import tempfile

import torch
import torch.distributed as dist
import torch.nn.functional as F
import transformers as hf

import luattn

LENGTH, WINDOW = 512, 100
LAYERS = {"gemma3": ["sliding_attention"] * 5 + ["full_attention"], "gpt_oss": ["sliding_attention", "full_attention"] * 2}
# The masks of the layers, by which tokens are shared out; scores and heads do not matter for that.
SLIDING = f"return attention {{ name = 'sliding', block_mask = function(b, h, q, k) return k <= q and q - k < {WINDOW} end }}"
FULL = "return attention { name = 'full', block_mask = causal() }"


def make_model(name, implementation):
    layers = LAYERS[name]
    sizes = dict(
        vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=len(layers), num_attention_heads=4, num_key_value_heads=2, head_dim=8,
        layer_types=layers, sliding_window=WINDOW, max_position_embeddings=LENGTH, bos_token_id=1, eos_token_id=2, pad_token_id=0,
    )  # fmt: skip
    torch.manual_seed(0)
    if name == "gemma3":
        return hf.Gemma3ForCausalLM._from_config(hf.Gemma3TextConfig(**sizes), attn_implementation=implementation).double()
    config = hf.GptOssConfig(**sizes, num_local_experts=2, num_experts_per_tok=1)
    return hf.GptOssForCausalLM._from_config(config, attn_implementation=implementation, experts_implementation="eager").double()


def tokens_of(step):
    """Tokens, and what each is followed by; -100 is no token."""
    tokens = torch.randint(3, 64, (1, LENGTH), generator=torch.Generator().manual_seed(step))
    return tokens, F.pad(tokens[:, 1:], (0, 1), value=-100)


def loss_of(model, tokens, labels, **given):
    """The sum over these tokens, over all that the sequence has."""
    logits = model(input_ids=tokens, attention_mask=torch.ones_like(tokens), use_cache=False, **given).logits
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=-100, reduction="sum") / (LENGTH - 1)


def train_alone(name, steps):
    luattn.transformers.register("luattn")
    model, losses = make_model(name, "luattn"), []
    optimizer = torch.optim.SGD(model.parameters(), 0.5)
    for step in range(steps):
        optimizer.zero_grad()
        loss = loss_of(model, *tokens_of(step))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def train_over(name, steps, ranks, rank):
    """Each rank has its tokens' losses and gradients, which are added up over the group as data parallelism does."""
    weights = [LAYERS[name].count(kind) for kind in ("sliding_attention", "full_attention")]
    plan = luattn.parallel.plan([SLIDING, FULL], LENGTH, ranks, weights=weights, heads=(4, 2), head_dim=8)
    luattn.transformers.register("luattn_parallel", context_parallel=plan)
    model, losses = make_model(name, "luattn_parallel"), []
    optimizer = torch.optim.SGD(model.parameters(), 0.5)
    for step in range(steps):
        optimizer.zero_grad()
        tokens, labels = (plan.shard(t, rank, 1) for t in tokens_of(step))
        loss = loss_of(model, tokens, labels, position_ids=plan.positions(rank)[None])
        loss.backward()
        for p in model.parameters():
            dist.all_reduce(p.grad)
        optimizer.step()
        loss = loss.detach().clone()
        dist.all_reduce(loss)
        losses.append(loss.item())
    return losses


def work(rank, name, ranks, steps, path):
    torch.set_num_threads(1)
    hf.logging.set_verbosity_error()
    dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=ranks)
    losses = train_over(name, steps, ranks, rank)
    if rank == 0:
        torch.save(losses, f"{path}.losses")
    dist.barrier()
    dist.destroy_process_group()


def compare(name, ranks, steps):
    """Losses of one process, and over ranks."""
    alone = train_alone(name, steps)
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "store")
        torch.multiprocessing.spawn(work, (name, ranks, steps, path), nprocs=ranks)
        return alone, torch.load(f"{path}.losses")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--models", default=",".join(LAYERS))
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--steps", type=int, default=3)
    given = parser.parse_args()
    for name in given.models.split(","):
        for step, (x, y) in enumerate(zip(*compare(name, given.ranks, given.steps))):
            print(f"{name}, step {step}: loss {x:.12f} in one process, {y:.12f} over {given.ranks} ranks")
