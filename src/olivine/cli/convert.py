"""`olivine convert`: a model in another format or type."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from olivine.cli.options import ModelPath
from olivine.cli.signals import cleaning_up
from olivine.cli.text import Status, echo_facts, size
from olivine.cli.tool_habits import FamiliarConvert
from olivine.errors import OlivineError, RequestError

if TYPE_CHECKING:
    from olivine.convert import Report


@click.command("convert", cls=FamiliarConvert, short_help="Write a model as GGUF, in any type.")
@click.argument("source", type=ModelPath())
@click.argument("destination", type=click.Path(path_type=Path))
@click.argument("named", metavar="[TYPE]", required=False)
@click.option(
    "--type", "kind", metavar="TYPE", help="Q4_K_M, Q8_0, BF16, qwen3.c, …; see above. TYPE alone does, too."
)
@click.option("--no-mmproj", is_flag=True, help="Do not write the vision and audio towers.")
@click.option("--mmproj-only", is_flag=True, help="Write only the vision and audio towers.")
@click.option("-t", "--threads", type=click.IntRange(1, 1024), help="Default: the number of physical cores.")
@click.option("-f", "--force", is_flag=True, help="Overwrite DESTINATION if it exists.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")
def command(
    source: Path,
    destination: Path,
    named: str | None,
    kind: str | None,
    no_mmproj: bool,
    mmproj_only: bool,
    threads: int | None,
    force: bool,
    as_json: bool,
) -> None:
    """Write the model SOURCE (a safetensors folder or a GGUF file) to the file DESTINATION.

    \b
    Floats     F32 F16 BF16
    8 bits     Q8_0
    6 to 5     Q6_K Q5_K_M Q5_K_S Q5_0 Q5_1
    4 bits     Q4_K_M Q4_K_S Q4_0 Q4_1
    qwen3.c    that program's .bin, with its tokenizer and templates beside it

    A model with vision or audio becomes two files: X.gguf (or X-TYPE.gguf) and, beside it, mmproj-X-F16.gguf
    (F32 or BF16 if TYPE is). Files have names that end in .part until they are complete.
    """
    from olivine.convert import convert  # imports NumPy: not before the arguments are right

    if named is not None and kind is not None:
        raise click.UsageError(f"two types are given: {named}, and --type {kind}.")
    kind = kind or named
    if not kind:
        raise click.MissingParameter(param_hint="'--type'", param_type="option")
    if no_mmproj and mmproj_only:
        raise click.UsageError("--no-mmproj and --mmproj-only exclude each other.")
    mmproj: Literal["with", "without", "only"] = "without" if no_mmproj else "only" if mmproj_only else "with"

    towers = None if no_mmproj else _towers_beside(source)
    if mmproj_only and towers is not None:
        raise RequestError(f"{source} has its towers for images and sound in {towers}: copy that file")
    started = time.perf_counter()
    with cleaning_up(), Status() as status:
        report = convert(
            source,
            destination,
            kind,
            mmproj=mmproj,
            threads=threads,
            force=force,
            progress=_Bar(status),
        )
    seconds = time.perf_counter() - started
    warnings = [*report.warnings]
    if towers is not None and not towers.parent.samefile(destination.parent):
        warnings.append(
            f"its towers for images and sound are in {towers}: copy that file too, or name it with --mmproj"
        )
    if as_json:
        facts = {"source": str(source), **_facts(report)}
        if report.mmproj is not None:
            facts["mmproj"] = _facts(report.mmproj)
        click.echo(json.dumps({**facts, "seconds": seconds, "warnings": warnings}, indent=2))
        return
    for file in (report, report.mmproj):
        if file is not None:
            lines = [f"{name} {size(total)} in {n}" for name, (n, total) in file.types.items()]
            echo_facts([("file", f"{file.path}, {size(file.bytes)}"), ("types", "\n".join(lines))])
    if warnings:
        echo_facts(("warning", warning) for warning in warnings)
    click.echo(click.style(f"{seconds:.1f} s", dim=True), err=True)


def _towers_beside(source: Path) -> Path | None:
    """The mmproj file with the towers of a GGUF model."""
    from olivine.formats import open_checkpoint
    from olivine.loading import model_of
    from olivine.towers import towers_of

    checkpoint = open_checkpoint(source)
    if checkpoint.format != "gguf":
        return None
    try:
        towers, _ = towers_of(checkpoint, model_of(checkpoint))
    except OlivineError:  # a model that does not run can be converted
        return None
    return towers[0].files[0] if towers else None


def _facts(report: Report) -> dict[str, Any]:
    types = {name: {"tensors": n, "bytes": total} for name, (n, total) in report.types.items()}
    return {"destination": str(report.path), "bytes": report.bytes, "types": types}


class _Bar:
    """A line that is drawn again a few times a second."""

    width = 30

    def __init__(self, status: Status) -> None:
        self.status = status
        self.drawn = 0.0

    def __call__(self, done: int, total: int, name: str) -> None:
        now = time.perf_counter()
        if now - self.drawn < 0.1:
            return
        self.drawn = now
        filled = self.width * done // max(total, 1)
        bar = "█" * filled + "░" * (self.width - filled)
        self.status.show(f"{bar} {size(done)} of {size(total)}  {name}")
