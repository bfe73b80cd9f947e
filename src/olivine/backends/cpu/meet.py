"""Where ranks meet: the native library calls back, and the collectives move the rows."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from olivine.backends.base import Collectives
from olivine.backends.cpu import native
from olivine.plan import Op, rank_ops

Float32 = npt.NDArray[np.float32]


class Meetings:
    """The callback of a program whose plan is one rank's. `error` is why the last one failed."""

    def __init__(self, ops: Mapping[int, Op], collectives: Collectives) -> None:
        self.error: BaseException | None = None
        self._ops, self._others = ops, collectives
        self.callback = native.Meet(self._meet)

    def _meet(self, op: int, x: int, x_width: int, out: int, width: int, rows: int) -> int:
        try:
            self._run(self._ops[op], x, x_width, out, width, rows)
        except BaseException as error:  # ctypes would print it and go on
            self.error = error
            return 1
        return 0

    def _run(self, op: Op, x: int, x_width: int, out: int, width: int, rows: int) -> None:
        match op:
            case rank_ops.AllReduce():
                _array(out, rows, width)[:] = self._others.all_reduce(_array(x, rows, x_width))
            case rank_ops.AllGather():
                _array(out, rows, width)[:] = self._others.all_gather(_array(x, rows, x_width), op.widths)
            case rank_ops.Send():
                self._others.send(_array(x, rows, x_width))
            case rank_ops.Receive():
                _array(out, rows, width)[:] = self._others.receive((rows, width))


def _array(address: int, rows: int, width: int) -> Float32:
    """Rows of an arena. They lie there only while the callback runs."""
    floats = ctypes.cast(address, ctypes.POINTER(ctypes.c_float))
    return np.ctypeslib.as_array(floats, (rows, width))
