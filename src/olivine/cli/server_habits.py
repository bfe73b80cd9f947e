"""Options that people give to a server by habit, as llama-server and vLLM have them: see habits.py."""

from __future__ import annotations

import re

import click

from olivine.cli import habits

SPELLINGS = {
    **habits.SPELLINGS,
    "--max-model-len": "--context",
    "-np": "--parallel",
    "--n-parallel": "--parallel",
    "--max-num-seqs": "--parallel",
    "--served-model-name": "--alias",
    "--sleep-idle-seconds": "--idle-unload",
    "--keepalive": "--idle-unload",
    "--tensor-parallel-size": "--tensor-parallel",
    "-tp": "--tensor-parallel",
    "--pipeline-parallel-size": "--pipeline-parallel",
    "-pp": "--pipeline-parallel",
    "--nnodes": "--nodes",
    "--dist-init-addr": "--rank-address",
    "--data-parallel-size": "--replicas",
    "-dp": "--replicas",
}

# What may follow --ray: an address, and no model.
_ADDRESS = re.compile(r"auto|local|ray://\S+|[\w.-]+:\d+|\[[0-9a-fA-F:]+\]:\d+")
_PREFIXES = "prefixes that prompts share are always computed once."
_FORMAT = "the formats of thoughts and tool calls are known from the model's own files."
_MEMORY = "memory and batch sizes are chosen by Olivine; --parallel and --context bound the KV cache."
_PROXY = "put a reverse proxy (nginx, Caddy) in front of the server for that."
_HUB = "HF_TOKEN, HF_HOME, HF_ENDPOINT are the variables for that; a model has its tokenizer with it."
_PER_REQUEST = "requests say how their tokens are chosen; what they leave out is the publisher's own choice."
_REFUSED = {
    ("-n", "--predict", "--n-predict", "--temp", "--temperature", "--top-k", "--top-p"): _PER_REQUEST,
    (
        "--min-p",
        "-s",
        "--seed",
        "--repeat-penalty",
        "--presence-penalty",
        "--frequency-penalty",
    ): _PER_REQUEST,
    ("-p", "--prompt", "-sys", "--system-prompt"): "prompts come with the requests.",
    ("-cb", "--cont-batching", "-nocb", "--no-cont-batching"): "requests are always batched continuously.",
    ("--cache-prompt", "--no-cache-prompt", "--cache-reuse", "--enable-prefix-caching"): _PREFIXES,
    ("--slots", "--no-slots", "--slot-save-path", "-sps", "--slot-prompt-similarity"): _PREFIXES,
    ("--embedding", "--embeddings", "--pooling"): "every model gives embeddings, at /v1/embeddings.",
    ("--metrics", "--props"): "it is always on.",
    ("--threads-http", "--api-server-count", "--workers"): "one process serves all connections.",
    ("--ssl-key-file", "--ssl-cert-file", "--ssl-keyfile", "--ssl-certfile"): _PROXY,
    ("--uds", "--root-path", "--api-prefix"): _PROXY,
    ("--reasoning-format", "--reasoning-parser", "--tool-call-parser", "--enable-auto-tool-choice"): _FORMAT,
    ("--gpu-memory-utilization", "--swap-space", "--block-size", "--max-num-batched-tokens"): _MEMORY,
    ("--fit", "--fit-target", "--enforce-eager", "--cpu-offload-gb"): _MEMORY,
    ("--dtype", "--quantization", "--load-format"): "weights stay in the type that the files have.",
    ("--kv-cache-dtype",): "--kv-type sets the type of keys and values: bf16, f32 or q8_0.",
    ("--models-dir", "--models-preset"): "give the folder of the models: olivine serve FOLDER.",
    ("--models-max",): "models are unloaded where memory is short; --idle-unload unloads them sooner.",
    ("--models-autoload", "--no-models-autoload"): "models are loaded when requests name them; see --pin.",
    ("--trust-remote-code",): "no code that comes with a model is ever run.",
    ("--tokenizer", "--revision", "--download-dir", "--hf-token", "-hft"): _HUB,
}
REFUSED = {**habits.REFUSED, **{name: reason for names, reason in _REFUSED.items() for name in names}}
REFUSED = {name: reason for name, reason in REFUSED.items() if name not in SPELLINGS}


class FamiliarServer(habits.FamiliarCommand):
    """A command that knows these options."""

    spellings = SPELLINGS
    refused = REFUSED

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """`--ray` may stand without an address."""
        left, told = list(args), list[str]()
        while left:
            arg = left.pop(0)
            if arg == "--":
                told += [arg, *left]
                break
            if arg == "--ray":
                arg = f"--ray={left.pop(0) if left and _ADDRESS.fullmatch(left[0]) else ''}"
            told.append(arg)
        return super().parse_args(ctx, told)
