"""The engine: sequences, their pages, sampling. It speaks token ids."""

from olivine.backends import Sampling
from olivine.engine.constraint import Constraint
from olivine.engine.engine import Engine
from olivine.engine.request import Request, Ticket, Timings, Update, Usage

__all__ = ["Constraint", "Engine", "Request", "Sampling", "Ticket", "Timings", "Update", "Usage"]
