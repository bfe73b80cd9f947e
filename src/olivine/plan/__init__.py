"""The plan: what a model computes, traced from its `forward`, independent of any backend."""

from olivine.plan.buffers import Buffers
from olivine.plan.fuse import fuse
from olivine.plan.fused_plan import FusedPlan
from olivine.plan.ops import Activation, Cache, Op, Rotation, Value, Weight
from olivine.plan.plan import CacheGroup, Plan
from olivine.plan.trace import Trace, trace

__all__ = [
    "Activation",
    "Buffers",
    "Cache",
    "CacheGroup",
    "FusedPlan",
    "Op",
    "Plan",
    "Rotation",
    "Trace",
    "Value",
    "Weight",
    "fuse",
    "trace",
]
