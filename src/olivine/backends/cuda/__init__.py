"""The CUDA backend: Triton kernels, decode steps as CUDA graphs, sampling on the device.

Import it only when it is chosen: it brings torch and triton (the extra `cuda`).
"""

from olivine.backends.cuda.program import PAGE_SIZE, CudaProgram

__all__ = ["PAGE_SIZE", "CudaProgram"]
