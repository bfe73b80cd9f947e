"""The engine: sequences, their pages, sampling. It speaks token ids."""

from olivine.backends import Sampling
from olivine.engine.constraint import Constraint
from olivine.engine.engine import Engine
from olivine.engine.request import Request, Ticket, Timings, Update, Usage
from olivine.engine.stats import Pages, Stats, StepTimes

__all__ = [
    "Constraint",
    "Engine",
    "Pages",
    "Request",
    "Sampling",
    "Stats",
    "StepTimes",
    "Ticket",
    "Timings",
    "Update",
    "Usage",
]
