"""Programs that talk to a server, and what each has to be told: `serve` prints it, `launch` sets it."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

NO_KEY = "olivine"  # clients want some key, also where the server wants none
KEY_VARIABLE = "$OLIVINE_API_KEY"  # stands for the key where lines for a shell are shown


@dataclass(frozen=True)
class Target:
    """A server, and the model to use there."""

    url: str  # without a slash at the end
    model: str
    key: str = NO_KEY

    @property
    def openai(self) -> str:
        return f"{self.url}/v1"


@dataclass(frozen=True)
class Client:
    """A program that people start in a shell."""

    title: str
    program: str  # the executable
    install: str  # the command that installs it
    environment: Callable[[Target], Mapping[str, str]]
    arguments: Callable[[Target], Sequence[str]] = lambda target: ()  # before the user's own

    def lines(self, target: Target) -> list[str]:
        """What to type in a shell."""
        return [export(self.environment(target)), shlex.join([self.program, *self.arguments(target)])]


def export(environment: Mapping[str, str]) -> str:
    """The line for a shell that sets these variables."""
    return "export " + " ".join(f"{name}={_quoted(value)}" for name, value in environment.items())


def _quoted(value: str) -> str:
    return f'"{value}"' if value == KEY_VARIABLE else shlex.quote(value)


def openai_sdk(target: Target) -> dict[str, str]:
    return {"OPENAI_BASE_URL": target.openai, "OPENAI_API_KEY": target.key}


def _claude(target: Target) -> dict[str, str]:
    # Without the token Claude Code asks for a login; the small model is used for titles and summaries.
    models = ("ANTHROPIC_MODEL", "ANTHROPIC_DEFAULT_HAIKU_MODEL", "ANTHROPIC_DEFAULT_SONNET_MODEL")
    return {
        "ANTHROPIC_BASE_URL": target.url,
        "ANTHROPIC_AUTH_TOKEN": target.key,
        **dict.fromkeys((*models, "ANTHROPIC_DEFAULT_OPUS_MODEL"), target.model),
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    }


def _codex(target: Target) -> list[str]:
    # Codex takes servers from its configuration only; -c sets values of it, in TOML.
    provider = {
        "name": "Olivine",
        "base_url": target.openai,
        "env_key": "OLIVINE_API_KEY",
        "wire_api": "responses",
    }
    given = [f"model_providers.olivine.{key}={json.dumps(value)}" for key, value in provider.items()]
    settings = ['model_provider="olivine"', *given]
    return [*(part for each in settings for part in ("-c", each)), "-m", target.model]


def _opencode(target: Target) -> dict[str, str]:
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "name": "Olivine",
        "options": {"baseURL": target.openai, "apiKey": target.key},
        "models": {target.model: {"name": target.model}},
    }
    config = {"provider": {"olivine": provider}, "model": f"olivine/{target.model}"}
    return {"OPENCODE_CONFIG_CONTENT": json.dumps(config, separators=(",", ":"))}


CLIENTS = {
    "claude": Client("Claude Code", "claude", "npm install -g @anthropic-ai/claude-code", _claude),
    "codex": Client(
        "Codex", "codex", "npm install -g @openai/codex", lambda t: {"OLIVINE_API_KEY": t.key}, _codex
    ),
    "aider": Client(
        "aider",
        "aider",
        "pip install aider-install && aider-install",
        lambda t: {"OPENAI_API_BASE": t.openai, "OPENAI_API_KEY": t.key},
        lambda t: ["--model", f"openai/{t.model}"],
    ),
    "opencode": Client("OpenCode", "opencode", "npm install -g opencode-ai", _opencode),
    "qwen": Client(
        "Qwen Code",
        "qwen",
        "npm install -g @qwen-code/qwen-code",
        lambda t: {**openai_sdk(t), "OPENAI_MODEL": t.model},
    ),
    "goose": Client(
        "Goose",
        "goose",
        "brew install block-goose-cli",
        lambda t: {
            "GOOSE_PROVIDER": "openai",
            "GOOSE_MODEL": t.model,
            "OPENAI_HOST": t.url,
            "OPENAI_API_KEY": t.key,
        },
        lambda t: ["session"],
    ),
    "open-webui": Client(
        "Open WebUI",
        "open-webui",
        "pip install open-webui",
        lambda t: {"OPENAI_API_BASE_URL": t.openai, "OPENAI_API_KEY": t.key},
        lambda t: ["serve"],
    ),
    "ollama": Client(
        "Ollama's programs",
        "ollama",
        "https://ollama.com/download",
        lambda t: {"OLLAMA_HOST": t.url, **({} if t.key == NO_KEY else {"OLLAMA_API_KEY": t.key})},
        lambda t: ["run", t.model],
    ),
}
