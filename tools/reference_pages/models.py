"""docs/reference/models.md: the short names of models, from hub/aliases.json."""

from __future__ import annotations

from olivine.hub.aliases import Alias, aliases

HEAD = """\
# Short names of models

Made from `src/olivine/hub/aliases.json` by `make docs`. A name is that of a family and a size; **bold** is
what the family's name alone means (`gemma3` is `gemma3:4b`). Another quantization of the same repository is
asked for behind the size: `gemma3:4b-q8_0`. Sizes are approximate, with the mmproj file if there is one; the
hub is asked before a download. [Models](../models.md) says how names are used.

| name | parameters | repository | type | size | context | besides text | license |
| --- | --- | --- | --- | ---: | ---: | --- | --- |
"""


def page() -> str:
    return HEAD + "".join(map(_row, aliases().values()))


def _row(alias: Alias) -> str:
    name = f"**`{alias.name}`**" if alias.default else f"`{alias.name}`"
    count = alias.all_bytes
    size = f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:.0f} MB"
    repo = f"[{alias.repo}](https://huggingface.co/{alias.repo})"
    can = ", ".join(alias.can) or "–"
    cells = (name, alias.parameters, repo, alias.type, size, f"{alias.context:,}", can, alias.license)
    return f"| {' | '.join(cells)} |\n"
