"""`olivine list`: the models on this machine, and those that can be downloaded by a short name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from olivine import box
from olivine.cli.text import Status, echo_table, json_text, program, size
from olivine.hub import local
from olivine.hub.aliases import aliases

if TYPE_CHECKING:
    from olivine.server.facts import Facts

IN_THE_BOX = "the package"
_WORDS = {"vision": "vision", "audio": "audio", "tools": "tools", "reasoning": "thinking"}


@click.command("list", short_help="List the models on this machine.")
@click.option("--available", is_flag=True, help="Those that can be pulled by a short name, and which fit.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")
def command(available: bool, as_json: bool) -> None:
    """List the models on this machine: in the cache of Hugging Face, and in the folders of LM Studio and
    Ollama, which are used where they are. --available lists the short names of models that can be pulled.
    """
    if available:
        _available(as_json)
        return
    found = [_facts(model) for model in _models()]
    if as_json:
        click.echo(json_text(found, indent=2))
        return
    rows = [
        (each["name"], each["type"], size(each["bytes"]), ", ".join(each["can"]) or "text", each["where"])
        for each in found
    ]
    echo_table(("name", "type", "size", "can", "in"), rows, right=frozenset({2}))
    if len(found) == 1 and found[0]["where"] == IN_THE_BOX:
        click.echo(
            f"\nTo get a larger one: {program()} list --available, {program()} pull gemma3:1b", err=True
        )


def _models() -> list[local.LocalModel]:
    found = local.models()
    if box.FILE.is_file():
        found.insert(0, local.LocalModel(IN_THE_BOX, box.NAME, "", box.FILE, (box.FILE,)))
    return found


def _facts(model: local.LocalModel) -> dict[str, Any]:
    """What is known of a model: from its short name, else from its files."""
    alias = model.alias
    kind, problem = model.type, None
    if alias is not None:
        can = alias.can
    else:
        facts = read_facts(model)
        kind = kind or next(iter(facts.types), "")
        can = capabilities(facts)
        problem = facts.problem
    return {
        "name": model.name,
        "id": model.id,
        "type": kind,
        "bytes": model.bytes,
        "can": list(can) if problem is None else ["does not run here"],
        "where": model.source,
        "path": str(model.path),
        "problem": problem,
    }


def read_facts(model: local.LocalModel) -> Facts:
    """What its files say."""
    from olivine.server.facts import read_facts

    with Status() as status:
        status.show(f"reading {model.name} …")
        return read_facts(model.path, model.mmproj)


def capabilities(facts: Facts) -> tuple[str, ...]:
    return tuple(_WORDS[name] for name, has in facts.capabilities.items() if has)


def _available(as_json: bool) -> None:
    from olivine.hub import fit
    from olivine.loading import DEFAULT_CONTEXT, choose_device

    here = {each.name for each in local.models()}
    device, _ = choose_device("auto")
    free = fit.free_memory(device)
    found: list[dict[str, Any]] = []
    for alias in aliases().values():
        context = min(DEFAULT_CONTEXT, alias.context)
        needed = fit.fit(alias.bytes, alias.cache_bytes(context), device, alias.active, free=free)
        found.append(
            {
                "name": alias.name,
                "default": alias.default,
                "repository": alias.repo,
                "type": alias.type,
                "bytes": alias.all_bytes,
                "parameters": alias.parameters,
                "license": alias.license,
                "can": list(alias.can),
                "here": alias.name in here,
                "memory": needed.needed,
                "fits": needed.fits,
                "tokens_per_second": None if needed.speed is None else round(needed.speed, 1),
            }
        )
    if as_json:
        click.echo(json_text(found, indent=2))
        return
    rows = [
        (
            each["name"] + " *" * each["default"],
            each["type"],
            _about(each["bytes"]),
            ", ".join(each["can"]) or "text",
            each["license"],
            "is here" if each["here"] else _fits(each),
        )
        for each in found
    ]
    echo_table(("name", "type", "size", "can", "license", "on this machine"), rows, right=frozenset({2}))
    click.echo(
        f"\n* is what the family's name alone means: gemma3 is gemma3:4b. Sizes are approximate. "
        f"{size(free)} of memory is free.\nTo download one: {program()} pull NAME",
        err=True,
    )


def _about(count: int) -> str:
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:.0f} MB"


def _fits(entry: dict[str, Any]) -> str:
    if not entry["fits"]:
        return "too large"
    speed = entry["tokens_per_second"]
    return (
        f"about {speed:.0f} tok/s" if speed and speed >= 10 else f"about {speed} tok/s" if speed else "fits"
    )
