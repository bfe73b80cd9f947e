"""The reference backend: NumPy, float32 end to end, and obviously right."""

from olivine.backends.reference.dequantize import dequantize
from olivine.backends.reference.program import ReferenceProgram

__all__ = ["ReferenceProgram", "dequantize"]
