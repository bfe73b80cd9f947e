"""The CUDA backend: Triton kernels, decode steps as CUDA graphs, sampling on the device.

Import it only when it is chosen: it brings torch and triton (the extra `cuda`).
"""

from olivine.backends.cuda.program import CHUNK, PAGE_SIZE, CudaProgram, device_name
from olivine.backends.cuda.weights import spare_bytes

__all__ = ["CHUNK", "PAGE_SIZE", "CudaProgram", "device_name", "spare_bytes"]
