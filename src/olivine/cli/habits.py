"""Options and commands that people type by habit, as llama.cpp, Ollama and others have them.

Some options are other spellings of ours. The rest has no equivalent: it is refused with what to do instead.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import click

from olivine.chat.thinking import is_thinking_word
from olivine.cli.obtain import ModelCommand

SPELLINGS = {
    "-sys": "--system",
    "--system-prompt": "--system",
    "--predict": "--max-tokens",
    "--n-predict": "--max-tokens",
    "--num-predict": "--max-tokens",
    "--max-new-tokens": "--max-tokens",
    "--num-ctx": "--context",
    "--context-length": "--context",
    "--repetition-penalty": "--repeat-penalty",
    "-r": "--stop",
    "--reverse-prompt": "--stop",
    "-j": "--json-schema",
    "-jf": "--json-schema",
    "--json-schema-file": "--json-schema",
    "--grammar-file": "--grammar",
    "-rea": "--think",
    "--reasoning": "--think",
    "--reasoning-effort": "--think",
    "--hidethinking": "--hide-thinking",
    "-dev": "--device",
    "-mm": "--mmproj",
}

_NO_SUCH_SAMPLER = "there is no such sampler: use --temp, --top-k, --top-p, --min-p and the penalties."
_ONE_DEVICE = "the whole model runs on one device: --device cuda or --device cpu."
_BY_NAME = "a model of Hugging Face is named as MODEL: publisher/repository:Q4_K_M."
_TEMPLATE = "the model's own chat template is used; -p TEXT continues a text without it."
_REFUSED = {
    ("-ngl", "--gpu-layers", "--n-gpu-layers", "--gpu", "-sm", "--split-mode"): _ONE_DEVICE,
    ("-ts", "--tensor-split", "-mg", "--main-gpu"): _ONE_DEVICE,
    ("-b", "--batch-size", "-ub", "--ubatch-size"): "batch sizes are chosen by Olivine.",
    ("-tb", "--threads-batch"): "-t sets the threads for prompts and answers alike.",
    ("-fa", "--flash-attn"): "attention has one implementation for each device: there is nothing to choose.",
    ("-ctk", "--cache-type-k", "-ctv", "--cache-type-v"): "--kv-type sets the type of keys and values: "
    "bf16, f32 or q8_0.",
    ("--mlock", "--mmap", "--no-mmap"): "weights are read where the file is mapped, always.",
    ("-hf", "--hf-repo", "-hff", "--hf-file", "-mu", "--model-url"): _BY_NAME,
    ("-cnv", "--conversation", "-i", "--interactive"): "a conversation is: olivine chat MODEL.",
    ("-no-cnv", "--no-conversation"): "-p TEXT continues a text without the chat template.",
    ("-p", "--prompt"): 'to ask once: olivine run MODEL "…".',
    ("-st", "--single-turn"): 'one question and its answer is: olivine run MODEL "…".',
    ("--jinja", "--no-jinja", "--chat-template", "--chat-template-file"): _TEMPLATE,
    ("-e", "--escape"): r"texts are taken as they are; for line feeds write $'one\ntwo' in the shell.",
    ("--color", "-co"): "terminals get color anyway, and pipes never do.",
    ("--log-disable", "--no-display-prompt", "--no-perf", "--simple-io"): "-q prints the answer only.",
    ("--verbose-prompt",): "--show-prompt prints the prompt and stops.",
    ("--repeat-last-n",): "--repeat-penalty counts the whole text.",
    ("--mirostat", "--mirostat-lr", "--mirostat-ent", "--samplers", "--sampling-seq"): _NO_SUCH_SAMPLER,
    ("--typical", "--typical-p", "--dynatemp-range", "--dynatemp-exp"): _NO_SUCH_SAMPLER,
    ("--xtc-probability", "--xtc-threshold", "--dry-multiplier", "--dry-base"): _NO_SUCH_SAMPLER,
    ("--lora", "--lora-scaled", "--control-vector"): "adapters are not supported: merge it into the model.",
    ("--audio", "--video"): "-a FILE attaches images, sounds and videos.",
    ("--mmproj-auto", "--no-mmproj", "--no-mmproj-auto"): "towers take no memory before the first image or "
    "sound; --mmproj FILE says where they are.",
    ("-mmu", "--mmproj-url"): "olivine pull downloads the mmproj file with its model.",
    ("--keep", "--context-shift", "--no-context-shift"): "nothing is dropped from a full context: "
    "the answer ends; --context N gives it more room.",
    ("--rope-scaling", "--rope-freq-base", "--rope-freq-scale"): "RoPE is set by the model's files.",
    ("--reasoning-budget",): "--think=off, --think and --think=high say how much to think.",
    ("--keepalive", "--keep-alive"): "the model is loaded for this command and freed at its end.",
    ("--nowordwrap",): "lines are wrapped in a terminal only: with | cat they are not.",
}
REFUSED = {name: reason for names, reason in _REFUSED.items() for name in names}

_COMMANDS = {
    ("download", "get", "fetch"): "To download a model: olivine pull MODEL",
    ("create", "push", "cp"): "Models are files: copy them as such. The ones on this machine: olivine list",
    ("ls", "models", "search"): "The models on this machine: olivine list",
    ("remove", "delete", "del"): "To delete a model: olivine rm MODEL",
    ("server", "start"): "To serve models over HTTP: olivine serve MODEL",
    ("load",): "A model is loaded by the command that uses it.",
    ("unload", "kill"): "To unload a model of a running server: olivine stop MODEL",
    ("info",): "To see what is known of a model: olivine show MODEL",
    ("generate", "complete", "completion", "ask"): 'To ask once: olivine run MODEL "…"',
    ("cli", "interactive"): "A conversation is: olivine chat MODEL",
    ("quantize",): "To quantize: olivine convert SOURCE DESTINATION --type Q4_K_M",
    ("benchmark",): "To measure speed: olivine bench MODEL",
    ("collect-env", "diagnose", "check", "status"): "To check this machine: olivine doctor",
    ("settings", "set", "env"): "The settings: olivine config",
    ("version",): "The version: olivine --version",
    ("help",): "The list of commands: olivine --help",
}
COMMANDS = {name: hint for names, hint in _COMMANDS.items() for name in names}


class FamiliarCommand(ModelCommand):
    """A command that knows these options, and whose `--think` may stand without a value."""

    spellings: Mapping[str, str] = SPELLINGS
    refused: Mapping[str, str] = REFUSED
    arguments: Mapping[str, str] = {}  # options that stand for an argument, and its name

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        options = [each for each in self.params if isinstance(each, click.Option)]
        own = {name for option in options for name in option.opts}
        valued = {name for option in options if not option.is_flag for name in option.opts}
        places = [each.name for each in self.params if isinstance(each, click.Argument)]
        left, told = list(args), list[str]()
        first, last = list[str](), list[str]()  # before and after the arguments that have no name
        while left:
            arg = left.pop(0)
            if arg == "--":
                last[:0] = left
                break
            name, equals, value = arg.partition("=") if arg.startswith("-") else (arg, "", "")
            if self.spellings.get(name) in own and name not in own:
                name = self.spellings[name]
            if name in self.refused and name not in own:
                raise click.UsageError(f"{arg}: {self.refused[name]}", ctx)
            if name in self.arguments and name not in own:
                if not equals and not left:
                    raise click.BadOptionUsage(name, f"Option {name!r} requires an argument.", ctx)
                value = value if equals else left.pop(0)
                if self.arguments[name] == places[0]:
                    first = [value]
                else:
                    last.append(value)
                continue
            if name == "--think" in own and not equals:
                word = left.pop(0) if left and is_thinking_word(left[0]) else "on"
                told.append(f"--think={word}")
                continue
            if "--continue" in own:
                _refuse_context(ctx, name, left)
            told.append(f"{name}{equals}{value}")
            if name in valued and not equals and left:
                told.append(left.pop(0))
        return super().parse_args(ctx, [*first, *told, *(["--", *last] if last else [])])


def _refuse_context(ctx: click.Context, name: str, left: list[str]) -> None:
    """`-c 2048` sets llama.cpp's context. Here the number would be part of what is asked."""
    glued = re.fullmatch(r"-c(\d+)", name)
    number = glued[1] if glued else left[0] if left and name in ("-c", "--continue") else ""
    if number.isdecimal():
        raise click.UsageError(
            f"-c goes on with the last conversation and takes no number: the context is --context {number}."
            f' To say "{number}" in that conversation, put -c after it.',
            ctx,
        )


def refuse_seed(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    """`-s 42` is llama.cpp's seed. A system message is more than a number."""
    if value is not None and re.fullmatch(r"-?\d+", value.strip()):
        raise click.UsageError(
            f"-s (--system) takes a text, which the model is told first: the seed is --seed {value}.", ctx
        )
    return value
