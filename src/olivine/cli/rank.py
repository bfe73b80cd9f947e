"""`olivine rank`: ranks of a model that another machine drives."""

from __future__ import annotations

import os
from pathlib import Path

import click

from olivine.cli.options import ModelPath, rank_address_option, rank_key_option
from olivine.cli.signals import cleaning_up
from olivine.cli.text import escaped
from olivine.cli.tool_habits import FamiliarTool


@click.command("rank", cls=FamiliarTool, short_help="Run a part of a model for another machine.")
@click.argument("model", type=ModelPath())
@rank_address_option
@rank_key_option
@click.option(
    "-n",
    "--ranks",
    type=click.IntRange(1, 256),
    default=1,
    show_default=True,
    help="Ranks on this machine: one for each GPU.",
)
@click.option(
    "-t",
    "--threads",
    type=click.IntRange(1, 1024),
    help="Of each rank. Default: the number of physical cores.",
)
def command(
    model: Path, rank_address: str | None, rank_key: str | None, ranks: int, threads: int | None
) -> None:
    """Run a part of MODEL for another machine, which serves it.

    \b
    there: olivine serve MODEL --tensor-parallel 2 --rank-address 10.0.0.1:29500
    here:  olivine rank MODEL --rank-address 10.0.0.1:29500

    Both need the same Olivine, torch, the same model files and the same key (OLIVINE_RANK_KEY). This waits
    until the other machine is there, and again when it has ended; Ctrl-C stops it. Nothing between the
    machines is encrypted, and who knows the key can run programs on them: use a network that you trust.
    """
    if rank_address is None:
        raise click.UsageError("--rank-address is missing: host:port of the machine that serves the model.")
    if not rank_key:
        raise click.UsageError(
            "--rank-key is missing: give it as OLIVINE_RANK_KEY, the same on all machines."
        )
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # as in loading.py
    from olivine.cluster.rendezvous import Address, keep_ranks
    from olivine.cluster.torch_collectives import require_torch
    from olivine.formats import open_checkpoint

    address = Address.of(rank_address)
    require_torch()
    path = open_checkpoint(model).path  # refuses what is no model before it waits
    told = "a rank" if ranks == 1 else f"{ranks} ranks"
    click.echo(f"{told} of {escaped(path.name)} for {address} (Ctrl-C stops)", err=True)
    with cleaning_up():
        if not keep_ranks(path, address, rank_key, ranks, threads):
            raise click.ClickException("the machine that serves the model does not take this rank.")
