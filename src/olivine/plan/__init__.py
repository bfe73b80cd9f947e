"""The plan: what a model computes, traced from its `forward`, independent of any backend.

Fusing (`plan/fuse.py`) is imported by the backends that use it: a start on the CPU does without.
"""

from olivine.plan.buffers import Buffers
from olivine.plan.ops import Activation, Cache, Op, Rotation, Value, Weight
from olivine.plan.plan import CacheGroup, Plan
from olivine.plan.trace import Trace, trace

__all__ = [
    "Activation",
    "Buffers",
    "Cache",
    "CacheGroup",
    "Op",
    "Plan",
    "Rotation",
    "Trace",
    "Value",
    "Weight",
    "trace",
]
