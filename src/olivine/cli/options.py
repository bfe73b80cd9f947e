"""Options that several commands have."""

from __future__ import annotations

import click

device = click.option(
    "--device", type=click.Choice(["auto", "cpu", "cuda", "reference"]), default="auto", show_default=True
)
