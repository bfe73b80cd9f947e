"""The engine: sequences, their pages, sampling. It speaks token ids."""

from olivine.backends import Sampling
from olivine.engine.constraint import Constraint
from olivine.engine.engine import Engine
from olivine.engine.jobs import Embed, Generate, Job, Score
from olivine.engine.media import MediaBlock
from olivine.engine.request import Request, Ticket
from olivine.engine.stats import Pages, Stats, StepTimes
from olivine.engine.thought import ThoughtTokens
from olivine.engine.updates import Finish, Timings, Update, Usage

__all__ = [
    "Constraint",
    "Embed",
    "Engine",
    "Finish",
    "Generate",
    "Job",
    "MediaBlock",
    "Pages",
    "Request",
    "Sampling",
    "Score",
    "Stats",
    "StepTimes",
    "ThoughtTokens",
    "Ticket",
    "Timings",
    "Update",
    "Usage",
]
