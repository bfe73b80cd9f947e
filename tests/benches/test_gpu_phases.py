"""What benches/gpu_phases.py measures computes what it says, in Triton's interpreter."""

from __future__ import annotations

import os

import pytest

pytest.importorskip("triton")
if os.environ["TRITON_INTERPRET"] != "1":
    pytest.skip("needs Triton's interpreter", allow_module_level=True)

from gpu_phases import Phases


@pytest.mark.parametrize("work", [False, True])
def test_every_launch_reads_what_the_one_before_wrote(work: bool) -> None:
    phases = Phases(4, work, "cpu", 4)
    phases.by_launches()
    phases.check()


def test_one_program_counts_for_itself() -> None:
    phases = Phases(1, True, "cpu", 4)  # it waits for no other, which the interpreter would run after it
    phases.by_counters()
    phases.check()


def test_a_phase_that_is_missing_is_noticed() -> None:
    phases = Phases(4, True, "cpu", 4)
    phases.by_launches()
    phases.by_launches()
    with pytest.raises(AssertionError, match="8"):
        phases.check()
