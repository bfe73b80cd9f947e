"""The engine: sequences, their pages, sampling. It speaks token ids."""

from olivine.engine.engine import Engine
from olivine.engine.sampling import Sampling

__all__ = ["Engine", "Sampling"]
