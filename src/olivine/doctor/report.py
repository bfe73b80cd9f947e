"""The whole report, section by section."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

from olivine.backends.cpu import isas
from olivine.backends.devices import Obstacle, cuda_obstacle
from olivine.doctor.disk import settings, stores
from olivine.doctor.gpu import gpus
from olivine.doctor.hardware import memory, processor
from olivine.doctor.section import Problem, Section, without_paths
from olivine.doctor.selftest import Outcome, run_tests
from olivine.doctor.versions import versions
from olivine.errors import OlivineError


@dataclass
class Report:
    sections: list[Section] = field(default_factory=list)

    @property
    def problems(self) -> list[Problem]:
        return [problem for section in self.sections for problem in section.problems]

    @property
    def failed(self) -> bool:
        return any(problem.failure for problem in self.problems)

    def to_json(self, *, paths: bool) -> dict[str, Any]:
        found: dict[str, Any] = {section.name: section.facts for section in self.sections}
        found |= {"problems": [asdict(problem) for problem in self.problems], "ok": not self.failed}
        cleaned = found if paths else _clean(found)
        assert isinstance(cleaned, dict)
        return cleaned


def examine(
    tell: Callable[[str], None] = lambda _: None,
    *,
    paths: bool = False,
    again: bool = False,
    tests: bool = True,
) -> Report:
    """Looks at everything; `tell` is called with what is looked at. `again` measures the bandwidth anew."""
    report = Report()
    tell("versions")
    report.sections.append(versions())
    tell("the CPU")
    report.sections.append(processor())
    tell("the memory bandwidth")
    report.sections.append(memory(again=again))
    tell("the GPU")
    obstacle = cuda_obstacle()
    report.sections.append(
        gpus(None if obstacle is None else {"reason": obstacle.reason, "gpu": obstacle.gpu})
    )
    if tests:
        report.sections.append(self_tests(obstacle, tell))
    tell("the disk")
    report.sections += [stores(paths=paths), settings(paths=paths)]
    return report


def self_tests(obstacle: Obstacle | None, tell: Callable[[str], None]) -> Section:
    """Every backend that this machine can run, against the reference."""
    section = Section("self_tests")
    names = [] if obstacle is not None else ["cuda"]
    with contextlib.suppress(OlivineError):  # of the library, which is named as a problem of the CPU
        names += [f"cpu {isa}" for isa in isas.isas() if isas.usable(isa)]
    outcomes = run_tests(names, lambda name: tell(f"the backend {name}"))
    section.facts = {"outcomes": [asdict(outcome) for outcome in outcomes]}
    if not names:
        section.tell("none", "there is no backend to test")
    for outcome in outcomes:
        section.tell(outcome.name, _told(outcome))
        if not outcome.ok:
            section.problems.append(
                Problem(
                    f"the self-test of {outcome.name} failed: {outcome.problem}",
                    _REMEDY[outcome.name.split()[0]],
                    failure=True,
                )
            )
    return section


_REMEDY = {
    "cpu": "report this, with the output of olivine doctor; OLIVINE_ISA=plain may work meanwhile",
    "cuda": "update the driver, torch and triton, or report this, with this output; meanwhile: --device cpu",
}


def _told(outcome: Outcome) -> str:
    if not outcome.ok:
        return f"FAILED: {outcome.problem}"
    error = f"logits within {outcome.error:.1%} of the reference's" if outcome.error is not None else ""
    return f"ok, {error} ({outcome.seconds:.1f} s)"


def _clean(value: Any) -> Any:
    """Facts without paths."""
    match value:
        case str():
            return without_paths(value)
        case dict():
            return {key: _clean(each) for key, each in value.items()}
        case list() | tuple():
            return [_clean(each) for each in value]
    return value
