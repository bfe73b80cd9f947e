"""Loading a model for a command with one user."""

from __future__ import annotations

import gc
import os
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from olivine import box
from olivine.cli.defaults import default_model
from olivine.cli.lazy_torch import import_torch_lazily
from olivine.cli.obtain import Wanted
from olivine.cli.text import Status, program, size
from olivine.errors import CheckpointError, MissingModelError

if TYPE_CHECKING:
    from olivine.llm import LLM

HOW_TO_GET_A_MODEL = """\
Name a model, which is downloaded if it is not here, or give a GGUF file or a folder of safetensors:

  {olivine} chat gemma3:1b
  {olivine} run path/to/model.gguf "Why is the sky blue?"

The names, and which fit this machine: {olivine} list --available
"""


def unnamed_model() -> Path | Wanted:
    """The model where none is named: that of the settings, which may not be here yet, or the packaged one."""
    context = click.get_current_context(silent=True)
    try:
        named = None if context is None else default_model(context)
    except MissingModelError as error:
        return Wanted(error)
    return _packaged() if named is None else named


def _packaged() -> Path:
    """The packaged model; if it is missing, prints how to get one and exits."""
    try:
        return box.packaged()
    except CheckpointError as error:
        how = HOW_TO_GET_A_MODEL.format(olivine=program())
        click.echo(f"Error: {error}\n\n{how}", err=True, nl=False)
        sys.exit(2)


def saved_name(model: Path) -> str:
    """A model's name in a saved conversation: its path, but for the packaged one, which may move."""
    return box.NAME if model == box.FILE else str(model.absolute())


def saved_model(name: str) -> Path:
    """The model of that `saved_name`."""
    return _packaged() if name == box.NAME else Path(name)


def remembered(name: str | None) -> Path | Wanted:
    """The model that a saved conversation names, or the one that is used where none is named."""
    return saved_model(name) if name else unnamed_model()


def introduce(model: Path, command: str) -> None:
    """Says in a terminal that this is the packaged model, and how to use a larger one."""
    if model != box.FILE or not all(each.isatty() for each in (sys.stdin, sys.stdout, sys.stderr)):
        return
    other = f"{program()} {command} gemma3:1b"
    line = f"{box.NAME}, the tiny storyteller in the box. A real model: {other}"
    plain = os.environ.get("TERM", "dumb") == "dumb"
    click.echo(line if plain else click.style(line, dim=True), err=True)


def tell_of_ranks(model: Path, options: Mapping[str, Any]) -> None:
    """Says what to type on the other machines, for which loading waits."""
    if (address := options["rank_address"]) is not None:
        ranks = options["tensor_parallel"] * options["pipeline_parallel"]
        each = ranks // (options["nodes"] or ranks)
        if not (far := ranks - each):
            return
        there = f"{program()} rank {shlex.quote(saved_name(model))} --rank-address {address}"
        if each > 1:
            there += f" --ranks {each}"
        click.echo(f"waiting for {far} of {ranks} ranks; on the other machines: {there}", err=True)


def open_model(
    path: Path,
    *,
    device: str,
    threads: int | None,
    context: int | None,
    kv_type: str,
    mmproj: Path | None = None,
    reproducible: bool = False,
    tensor_parallel: int = 1,
    pipeline_parallel: int = 1,
    nodes: int | None = None,
    rank_address: str | None = None,
    rank_key: str | None = None,
    quiet: bool = False,
    sequences: int = 1,
) -> LLM:
    """The model, for one sequence at a time, or for several."""
    if device != "reference":
        # NumPy's BLAS would start a thread a core: that takes as long as importing NumPy, for nothing.
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    import_torch_lazily()
    from olivine.llm import load  # imports NumPy: not before the arguments are right

    parallel = {
        "tensor_parallel": tensor_parallel,
        "pipeline_parallel": pipeline_parallel,
        "nodes": nodes,
        "rank_address": rank_address,
    }
    tell_of_ranks(path, parallel)
    status = Status(quiet=quiet)

    def loading(done: int, of: int) -> None:
        if of:  # else it waits for other machines
            status.show(f"loading onto the GPU: {size(done)} of {size(of)}")

    gc.disable()  # loading makes no garbage, only vocabularies that are slow to look through for some
    try:
        llm = load(
            path,
            device=device,
            threads=threads,
            context=context,
            sequences=sequences,
            kv_type=kv_type,
            mmproj=mmproj,
            reproducible=reproducible,
            tensor_parallel=tensor_parallel,
            pipeline_parallel=pipeline_parallel,
            nodes=nodes,
            rank_address=rank_address,
            rank_key=rank_key,
            progress=loading,
            compile_progress=status.show_compiling,
        )
        gc.freeze()
    finally:
        status.clear()
        gc.enable()
    return llm
