"""What a request can ask for. A further job is one more class: the scheduler knows none of them by name."""

from olivine.engine.jobs.base import Job, Outcome, Resources
from olivine.engine.jobs.embed import Embed
from olivine.engine.jobs.generate import Generate
from olivine.engine.jobs.score import Score

__all__ = ["Embed", "Generate", "Job", "Outcome", "Resources", "Score"]
