"""Options that people give by habit to commands that measure, convert and look, as llama-bench,
llama-perplexity, llama-tokenize, llama-quantize and convert_hf_to_gguf.py have them: see habits.py."""

from __future__ import annotations

from collections.abc import Mapping

from olivine.cli import habits

_MODEL = {"-m": "model", "--model": "model"}
# What these two run on is chosen as for a chat.
_RUNS = {
    name: habits.REFUSED[name]
    for name in (
        *("-ngl", "--gpu-layers", "--n-gpu-layers", "-sm", "--split-mode", "-ts", "--tensor-split", "-mg"),
        *("--main-gpu", "-b", "--batch-size", "-ub", "--ubatch-size", "-fa", "--flash-attn", "--mlock"),
        *("--mmap", "--no-mmap", "-hf", "--hf-repo"),
    )
}


class FamiliarTool(habits.FamiliarCommand):
    """A command with the argument MODEL, which may be given as an option."""

    spellings: Mapping[str, str] = {}
    refused: Mapping[str, str] = {}
    arguments: Mapping[str, str] = _MODEL


class FamiliarBench(FamiliarTool):
    spellings: Mapping[str, str] = {
        "-p": "--prompt",
        "--n-prompt": "--prompt",
        "-n": "--generate",
        "--n-gen": "--generate",
        "-d": "--depth",
        "--n-depth": "--depth",
        "-r": "--repeats",
        "--repetitions": "--repeats",
        "-npl": "--parallel",
        "-dev": "--device",
    }
    refused: Mapping[str, str] = {
        **_RUNS,
        "-mmp": habits.REFUSED["--mmap"],
        **dict.fromkeys(("-o", "--output"), "--json prints JSON."),
        **dict.fromkeys(("-pg", "-npp", "-ntg"), "-p N and -n N set the tokens that are read and generated."),
    }


class FamiliarPerplexity(FamiliarTool):
    spellings: Mapping[str, str] = {
        "-c": "--window",
        "--ctx-size": "--window",
        "--context": "--window",
        "--chunks": "--windows",
        "-dev": "--device",
    }
    refused: Mapping[str, str] = {
        **_RUNS,
        **dict.fromkeys(("--kl-divergence", "--kl-divergence-base"), "for that: olivine compare A B TEXT."),
    }
    arguments: Mapping[str, str] = {**_MODEL, "-f": "text", "--file": "text"}


class FamiliarTokenize(FamiliarTool):
    spellings: Mapping[str, str] = {"--show-count": "--count"}
    refused: Mapping[str, str] = {
        **dict.fromkeys(("-f", "--file"), "a file is read as standard input: olivine tokenize MODEL < FILE."),
        "--stdin": "standard input is read where no text is given.",
        "--no-parse-special": "special tokens are text unless --special is given.",
    }
    arguments: Mapping[str, str] = {**_MODEL, "-p": "text", "--prompt": "text"}


class FamiliarConvert(FamiliarTool):
    spellings: Mapping[str, str] = {"--outtype": "--type"}
    refused: Mapping[str, str] = {
        "--imatrix": "weights are quantized without an importance matrix.",
        "--allow-requantize": "a quantized source is taken as any other, with a warning.",
    }
    arguments: Mapping[str, str] = {"--outfile": "destination"}
