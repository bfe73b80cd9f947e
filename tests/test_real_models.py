"""Real published weights, end to end."""

from __future__ import annotations

import functools
from collections.abc import Iterator

import gguf
import numpy as np
import pytest
import torch
import transformers

import olivine
from oracles import running
from oracles.real_models import QWEN_CODER, SMOLLM2

pytestmark = pytest.mark.timeout(900)

# The reference backend decodes all weights again at each step; its logits have a test of their own.
FAST_BACKENDS = pytest.mark.parametrize(
    "smollm2", ["cpu", pytest.param("reference", marks=pytest.mark.exhaustive)], indirect=True
)

TEXT = """The lighthouse had stood on the northern cliff for two hundred years. Every evening, an old keeper
named Tomas climbed its 199 steps, cleaned the great lens with a soft cloth, and lit the lamp before the first
star came out. Ships far out at sea would see the light turning slowly through the fog and know that they were
close to home. One winter night, when the wind howled like a pack of wolves, the lamp would not burn. Tomas
looked for oil, but the barrels were empty. He ran down to the village and knocked on every door. "Bring me
whatever you have," he cried: "candles, lanterns, torches!" So the people came, one after another, carrying
small lights up the long stairs, until the tower glowed brighter than it ever had before. Out on the water, a
captain wiped the snow from his eyes and laughed aloud. In the morning there were three ships in the harbour,
and nobody in the village was ever afraid of the dark again."""


@pytest.fixture(scope="module", params=["reference", "cpu"])
def smollm2(request: pytest.FixtureRequest) -> Iterator[olivine.LLM]:
    with olivine.load(SMOLLM2.path(), device=request.param) as llm:
        yield llm


@functools.cache
def published_logits(tokens: tuple[int, ...], rounded: bool = False) -> np.ndarray:
    """Logits of the published code; with `rounded`, what its products read is rounded to int8."""
    model = published_llama(str(SMOLLM2.path()))
    hooks = [
        module.register_forward_pre_hook(lambda module, args: (in_int8(*args),))
        for module in (model.modules() if rounded else ())
        if isinstance(module, torch.nn.Linear)
    ]
    with torch.no_grad():
        found = model.forward(torch.tensor([tokens])).logits[0].numpy()
    for hook in hooks:
        hook.remove()
    return found


def in_int8(x: torch.Tensor) -> torch.Tensor:
    """Rounded to eight bits in blocks of 32, each with a scale of its own."""
    blocks = x.reshape(*x.shape[:-1], -1, 32)
    scale = blocks.abs().amax(-1, keepdim=True).clamp(min=1e-30) / 127
    return ((blocks / scale).round() * scale).reshape(x.shape)


def chat(question: str) -> str:
    return f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"


@functools.cache
def published_llama(path: str) -> transformers.LlamaForCausalLM:
    """The published model code with the file's weights as the gguf library decodes them."""
    reader = gguf.GGUFReader(path)
    fields = {name: field.contents() for name, field in reader.fields.items() if name.startswith("llama.")}
    config = transformers.LlamaConfig(
        vocab_size=49152,
        hidden_size=fields["llama.embedding_length"],
        intermediate_size=fields["llama.feed_forward_length"],
        num_hidden_layers=fields["llama.block_count"],
        num_attention_heads=fields["llama.attention.head_count"],
        num_key_value_heads=fields["llama.attention.head_count_kv"],
        rms_norm_eps=fields["llama.attention.layer_norm_rms_epsilon"],
        max_position_embeddings=fields["llama.context_length"],
        rope_parameters={"rope_type": "default", "rope_theta": fields["llama.rope.freq_base"]},
        tie_word_embeddings=True,
        attn_implementation="eager",
    )
    model = transformers.LlamaForCausalLM(config).float().eval()
    names = {
        "attn_norm": "input_layernorm", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v":
        "self_attn.v_proj", "attn_output": "self_attn.o_proj", "ffn_norm": "post_attention_layernorm",
        "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
    }  # fmt: skip
    state = {}
    for tensor in reader.tensors:
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        stem = tensor.name.removesuffix(".weight")
        if stem == "token_embd":
            state["model.embed_tokens.weight"] = values
        elif stem == "output_norm":
            state["model.norm.weight"] = values
        else:
            _, layer, kind = stem.split(".")
            if kind in ("attn_q", "attn_k"):
                heads = config.num_attention_heads if kind == "attn_q" else config.num_key_value_heads
                half = len(values) // heads // 2
                values = values.reshape(heads, half, 2, -1).swapaxes(1, 2).reshape(values.shape)
            state[f"model.layers.{layer}.{names[kind]}.weight"] = values
    tensors = {name: torch.from_numpy(np.array(values)) for name, values in state.items()}
    missing, unexpected = model.load_state_dict(tensors, strict=False)
    assert missing in ([], ["lm_head.weight"]) and not unexpected
    model.tie_weights()
    return model


def test_smollm2_agrees_with_the_published_code_on_every_argmax(smollm2: olivine.LLM) -> None:
    count = 40 if smollm2.device == "reference" else 200  # which takes 0.1 s a token
    tokens = smollm2.tokenizer.encode(TEXT)[:count]
    assert len(tokens) == count
    theirs = published_logits(tuple(tokens))
    assert theirs.std() > 4
    ours = running.chunked(smollm2.program, tokens, [128])
    same = ours.argmax(axis=1) == theirs.argmax(axis=1)
    if smollm2.device == "reference":
        assert same.all()
        assert np.abs(ours - theirs).max() < 2e-3, "logits of standard deviation 8"
        return
    # The CPU backend rounds to bfloat16 and int8: it may differ only where the best two are nearly equal.
    best = np.sort(theirs, axis=1)
    close = best[:, -1] - best[:, -2] < 0.25
    assert (same | close).all()
    assert divergence(theirs, ours) < 0.002
    # Generated rows are in int8: no further away than the published code with that rounding.
    generated = running.chunked(smollm2.program, tokens, [1], generated=True)
    assert divergence(theirs, generated) < divergence(theirs, published_logits(tuple(tokens), rounded=True))


def divergence(p: np.ndarray, q: np.ndarray) -> float:
    """The mean Kullback-Leibler divergence of two sets of logits, in nats."""

    def log_softmax(x: np.ndarray) -> np.ndarray:
        x = x.astype(np.float64) - x.max(axis=1, keepdims=True)
        return x - np.log(np.exp(x).sum(axis=1, keepdims=True))

    a, b = log_softmax(p), log_softmax(q)
    return float(np.mean(np.sum(np.exp(a) * (a - b), axis=1)))


def test_smollm2_prompt_tokens_are_the_published_ones(smollm2: olivine.LLM) -> None:
    prompt = (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
        + chat("Hello")
    )
    assert smollm2.tokenizer.encode(prompt, parse_special=True) == [
        1, 9690, 198, 2683, 359, 253, 5356, 5646, 11173, 3365, 3511, 308, 34519, 28, 7018, 411, 407, 19712,
        8182, 2, 198, 1, 4093, 198, 19556, 2, 198, 1, 520, 9531, 198,
    ]  # fmt: skip
    assert smollm2.generate(prompt, parse_special=True, temperature=0, max_tokens=1).text == "Hello"


@FAST_BACKENDS
def test_smollm2_answers_a_question(smollm2: olivine.LLM) -> None:
    question = chat("What is the capital of France?")
    answer = smollm2.generate(question, parse_special=True, temperature=0, max_tokens=24).text
    assert "Paris" in answer
    assert "<|im_end|>" not in answer, "the end of the turn ends the answer"


@FAST_BACKENDS
def test_smollm2_samples_the_same_text_from_the_same_seed(smollm2: olivine.LLM) -> None:
    def story(seed: int) -> str:
        warm = olivine.Sampling(temperature=0.8, top_p=0.9, seed=seed)
        return smollm2.generate("Once upon a time", sampling=warm, max_tokens=12).text

    assert story(1) == story(1) != story(2)


def test_qwen_coder_writes_the_function_it_is_asked_for() -> None:
    system = (
        "<|im_start|>system\nYou are Qwen, created by Alibaba Cloud. You are a helpful assistant.<|im_end|>\n"
    )
    with olivine.load(QWEN_CODER.path()) as llm:
        answer = llm.generate(
            system + chat("Write a Python function add(a, b). Only code, no comments."),
            parse_special=True,
            temperature=0,
            max_tokens=32,
        ).text
    assert "def add(a, b):" in answer and "return a + b" in answer
