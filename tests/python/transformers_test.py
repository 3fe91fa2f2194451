"""transformers_test.py: models of transformers with attn_implementation="luattn" beside "eager", of random weights on the CPU: logits, all
gradients, generation. Exits with 77 where torch or transformers is not installed."""

import os
import sys
import unittest
import warnings

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, f"{ROOT}/python")
try:
    import torch
    import transformers as hf
except ImportError as e:
    print(f"{e}: skipped")
    sys.exit(77)
import luattn  # noqa: E402
from luattn import flex  # noqa: E402
from luattn.flex import _programs  # noqa: E402

warnings.filterwarnings("ignore")
hf.logging.set_verbosity_error()
luattn.transformers.register()
SIZES = {
    "vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 64, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
}  # fmt: skip
HYBRID = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 6}
MODELS = {
    "Llama": (hf.LlamaConfig, hf.LlamaForCausalLM, {}),
    "Mistral": (hf.MistralConfig, hf.MistralForCausalLM, {"sliding_window": 6}),
    "Gemma2": (hf.Gemma2Config, hf.Gemma2ForCausalLM, {**HYBRID, "attn_logit_softcapping": 2.0, "query_pre_attn_scalar": 4}),
    "Gemma3": (hf.Gemma3TextConfig, hf.Gemma3ForCausalLM, {**HYBRID, "query_pre_attn_scalar": 4}),
    "GptOss": (hf.GptOssConfig, hf.GptOssForCausalLM, {**HYBRID, "num_local_experts": 2, "num_experts_per_tok": 1}),
    "Llama4": (
        hf.Llama4TextConfig,
        hf.Llama4ForCausalLM,
        {"attention_chunk_size": 6, "num_local_experts": 2, "intermediate_size_mlp": 48, "no_rope_layers": [1, 0],
         "layer_types": ["chunked_attention", "full_attention"]},
    ),
    "Qwen3": (hf.Qwen3Config, hf.Qwen3ForCausalLM, {}),
}  # fmt: skip


def make(name):
    """The same weights with both."""
    config, model, given = MODELS[name]
    models = []
    for implementation in ("eager", "luattn"):
        torch.manual_seed(0)
        models.append(model._from_config(config(**SIZES | given), attn_implementation=implementation))
        for parameter_name, parameter in models[-1].named_parameters():
            if parameter_name.endswith("sinks"):
                torch.nn.init.normal_(parameter)
    assert models[1].config._attn_implementation == "luattn"
    models[1].load_state_dict(models[0].state_dict())
    return [m.eval() for m in models]


def tokens(batch=2, length=20):
    return torch.randint(3, 64, (batch, length), generator=torch.Generator().manual_seed(4))


def padding(ids):
    """A mask with padding on the left of the first."""
    mask = torch.ones_like(ids)
    mask[0, :5] = 0
    return mask


class Models(unittest.TestCase):
    def logits_and_gradients(self, mask):
        for name in MODELS:
            with self.subTest(name):
                eager, ours = make(name)
                ids = tokens()
                given = {} if mask is None else {"attention_mask": mask(ids)}
                keep = torch.ones_like(ids).bool() if mask is None else mask(ids).bool()
                logits = [m(ids, **given).logits[keep] for m in (eager, ours)]
                torch.testing.assert_close(logits[1], logits[0], rtol=1e-4, atol=1e-5)
                for x in logits:
                    x.square().mean().backward()
                for (what, a), b in zip(ours.named_parameters(), eager.parameters()):
                    if b.grad is not None:
                        torch.testing.assert_close(
                            a.grad, b.grad, rtol=1e-3, atol=1e-6, msg=lambda m, what=what: f"{what}: {m}"
                        )

    def test_logits_and_gradients(self):
        self.logits_and_gradients(None)

    def test_padded(self):
        self.logits_and_gradients(padding)

    def generate(self, **given):
        ids = tokens(2, 9)
        for name in MODELS:
            with self.subTest(name):
                found = [
                    m.generate(
                        ids,
                        attention_mask=padding(ids),
                        max_new_tokens=8,
                        min_new_tokens=8,
                        do_sample=False,
                        **given,
                    )
                    for m in make(name)
                ]
                self.assertTrue(torch.equal(*found), found)

    def test_generation(self):
        self.generate()

    def test_generation_with_a_static_cache(self):
        self.generate(cache_implementation="static", disable_compile=True)

    def test_a_compiled_step(self):
        """With a static cache transformers compiles the step of one token, in one graph: the offset is a tensor of it."""
        ids, graphs = tokens(2, 9), []

        def backend(graph, _):
            graphs.append(graph.code)
            return graph.forward

        config = hf.CompileConfig(fullgraph=True, mode=None, backend=backend)
        config._compile_all_devices = True
        for name in ("Llama", "Gemma2", "GptOss"):
            torch._dynamo.reset()
            eager, ours = make(name)
            given = {
                "attention_mask": padding(ids),
                "max_new_tokens": 6,
                "min_new_tokens": 6,
                "do_sample": False,
            }
            found = ours.generate(ids, cache_implementation="static", compile_config=config, **given)
            self.assertTrue(torch.equal(found, eager.generate(ids, **given)), name)
        self.assertLessEqual(len(graphs), 2 * 3)
        self.assertIn("luattn_flex__graph_flex_attention", graphs[-1])

    def test_no_spec_for_each_token(self):
        """Lengths and offsets of a cache are arguments."""
        model = make("Gemma2")[1]
        _programs.clear()
        counts = []
        for n in (3, 9):
            model.generate(tokens(2, 9), max_new_tokens=n, min_new_tokens=n, do_sample=False)
            counts.append(len(_programs.specs()))
        self.assertEqual(counts, [2, 2])  # a window, and all before

    def test_checkpointing_of_the_first_step(self):
        """T5's learned bias, whose mods are new to the process."""
        config = hf.T5Config(
            vocab_size=64, d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4, decoder_start_token_id=0, dropout_rate=0.0,
            attn_implementation="luattn",
        )  # fmt: skip
        model, ids = hf.T5Model(config).train(), tokens(2, 9)
        found = []
        for checkpointed in (True, False):
            _programs.clear()
            if checkpointed:
                model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
            else:
                model.gradient_checkpointing_disable()
            model.zero_grad()
            model(input_ids=ids, decoder_input_ids=ids).last_hidden_state.square().sum().backward()
            found.append([p.grad for p in model.parameters()])
        torch.testing.assert_close(*found)

    def test_packed_sequences(self):
        eager, ours = make("Llama")
        ids, positions = tokens(1, 12), torch.tensor([[0, 1, 2, 3, 4, 0, 1, 2, 0, 1, 2, 3]])
        logits = [m(ids, position_ids=positions, use_cache=False).logits for m in (eager, ours)]
        torch.testing.assert_close(logits[1], logits[0], rtol=1e-4, atol=1e-5)

    def test_masks_of_a_user(self):
        """Of four dimensions: bools, or numbers that are added."""
        eager, ours = make("Llama")
        ids = tokens()
        keep = (torch.rand(2, 1, 20, 20, generator=torch.Generator().manual_seed(1)) < 0.5) | torch.eye(
            20
        ).bool()
        added = torch.where(keep, 0.0, torch.finfo(torch.float32).min)
        want = eager(ids, attention_mask=added).logits
        for mask in (keep, added):
            torch.testing.assert_close(ours(ids, attention_mask=mask).logits, want, rtol=1e-4, atol=1e-5)


class Arguments(unittest.TestCase):
    def test_refusals(self):
        _, ours = make("Llama")
        q = torch.randn(1, 4, 5, 8)
        mask = luattn.transformers.make_mask(1, 5, 7)
        for call, message in (
            (
                lambda: luattn.transformers.attention(ours, q, q, q, None, dropout=1e-4),
                "dropout: p is 0.0001, which rounds to 0 in steps of 1/256",
            ),
            (
                lambda: luattn.transformers.attention(ours, q, q, q, None, output_attentions=True),
                "output_attentions",
            ),
            (
                lambda: luattn.transformers.attention(ours, q, q, q, mask),
                "keys have 5 positions, and the mask is for 7",
            ),
            (lambda: luattn.transformers.attention(ours, q, q, q, q[0]), "attention_mask: expected one of"),
        ):
            with self.assertRaisesRegex((ValueError, NotImplementedError), message):
                call()

    def test_dropout(self):
        """Of weights, which values of zeros and ones bring forth, learned sinks or not, compiled or not."""
        _, ours = make("GptOss")
        q = torch.randn(1, 4, 40, 40)
        v = torch.eye(40).expand(1, 4, 40, 40)
        mask = luattn.transformers.make_mask(1, 40, 40)
        for sinks in (None, torch.randn(4)):

            def weights(dropout, sinks=sinks):
                return luattn.transformers.attention(ours, q, q, v, mask, s_aux=sinks, dropout=dropout)[0]

            torch._dynamo.reset()
            every, compiled = weights(0.0), torch.compile(weights, backend="aot_eager", fullgraph=True)
            found = [f(0.25) for f in (weights, weights, compiled, compiled)]
            for a in found:
                kept = a != 0
                torch.testing.assert_close(a[kept], every[kept] / 0.75)
                self.assertLess(abs(kept.sum() / (every != 0).sum() - 0.75), 0.05)
            self.assertFalse(torch.equal(*found[:2]) or torch.equal(*found[2:]))

    def test_no_mask_is_causal(self):
        _, ours = make("Llama")
        q = torch.randn(1, 4, 5, 8)
        mask = flex.create_block_mask(lambda b, h, i, j: i >= j, None, None, 5, 5)
        for module, want in ((ours, flex.flex_attention(q, q, q, block_mask=mask)), (None, None)):
            if module is not None:
                o, weights = luattn.transformers.attention(module, q, q, q, None)
                torch.testing.assert_close(o, want.transpose(1, 2))
                self.assertIsNone(weights)
        o, _ = luattn.transformers.attention(ours, q, q, q, None, is_causal=False)
        torch.testing.assert_close(o, flex.flex_attention(q, q, q).transpose(1, 2))


class Served(unittest.TestCase):
    def test_a_model_with_attention_of_its_own_says_so(self):
        own = (
            (hf.GPTNeoConfig, hf.GPTNeoForCausalLM, {"hidden_size": 32, "num_layers": 2, "num_heads": 4, "attention_types": [[["global", "local"], 1]]}),
            (hf.BloomConfig, hf.BloomForCausalLM, {"hidden_size": 32, "n_layer": 2, "n_head": 4}),
            (hf.FalconConfig, hf.FalconForCausalLM, {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}),
            (hf.MptConfig, hf.MptForCausalLM, {"d_model": 32, "n_layers": 2, "n_heads": 4}),
        )
        served = luattn.transformers.register()
        for config, cls, sizes in own:
            with self.subTest(cls.__name__):
                with self.assertWarnsRegex(RuntimeWarning, f"{cls.__name__} does not take its attention by name, and keeps its own"):
                    model = cls._from_config(config(vocab_size=64, bos_token_id=1, eos_token_id=2, **sizes), attn_implementation="luattn")
                self.assertNotEqual(model.config._attn_implementation, "luattn")
                self.assertFalse(luattn.transformers.serves(model))
                self.assertEqual(model(tokens()).logits.shape, (2, 20, 64))
        for family in ("gpt_neo", "bloom", "falcon", "mpt"):
            self.assertNotIn(family, served)
        for family in ("llama", "gemma2", "gpt_oss", "qwen3", "t5", "bert"):
            self.assertIn(family, served)

    def test_others_do_not(self):
        with warnings.catch_warnings():
            warnings.simplefilter("error", RuntimeWarning)
            for name in MODELS:
                self.assertTrue(luattn.transformers.serves(make(name)[1]))
            hf.GPTNeoForCausalLM._from_config(hf.GPTNeoConfig(vocab_size=64, hidden_size=32, num_layers=2, num_heads=4, attention_types=[[["global"], 2]]))


if __name__ == "__main__":
    unittest.main()
