"""What a folder says of how images are preprocessed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from olivine.errors import ModelError
from olivine.formats.strict_json import read_object

_MAX_CONFIG_BYTES = 1 << 20


def colours(folder: Path, mean: float, deviation: float) -> dict[str, Any]:
    """The mean and the standard deviation for normalizing pixels, of each channel; or the usual ones."""
    told: dict[str, Any] = {}
    for name in ("preprocessor_config.json", "processor_config.json"):
        if (folder / name).is_file():
            found = read_object(folder / name, _MAX_CONFIG_BYTES)
            inner = found.get("image_processor")
            told |= {**found, **(inner if isinstance(inner, dict) else {})}
    made = {}
    for key, usual in (("image_mean", mean), ("image_std", deviation)):
        values = told.get(key, [usual] * 3)
        if not isinstance(values, list) or [type(v) in (int, float) for v in values] != [True] * 3:
            raise ModelError(f"{folder}: the image processor has {key} = {values!r:.60}, not three numbers")
        made[key] = np.array(values, np.float32)
    return made
