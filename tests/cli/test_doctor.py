"""`olivine doctor` as a user sees it."""

from __future__ import annotations

import json
import platform
from pathlib import Path

import pytest

from olivine import machine
from olivine.cli import doctor
from olivine.doctor import report as reports
from olivine.doctor.report import Report, self_tests
from olivine.doctor.section import Problem, Section
from olivine.doctor.selftest import Outcome
from oracles.commands import olivine


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("OLIVINE_CACHE", str(tmp_path))
    monkeypatch.setattr(machine, "bandwidth", lambda again: 2e10)
    return tmp_path


def test_everything_is_checked_and_works_here(tmp_path: Path) -> None:
    found = olivine("doctor", "--json", OLIVINE_CACHE=str(tmp_path))
    assert found.returncode == 0, found.stdout + found.stderr
    facts = json.loads(found.stdout)
    assert {*facts} == {
        "versions", "cpu", "memory", "gpu", "self_tests", "disk", "settings", "problems", "ok"
    }  # fmt: skip
    assert facts["ok"] and facts["memory"]["bandwidth"] > 0
    tested = {each["name"]: each["ok"] for each in facts["self_tests"]["outcomes"]}
    here = [f"cpu {name}" for name, why_not in facts["cpu"]["isas"].items() if why_not is None]
    assert {name for name in tested if name.startswith("cpu")} == {*here} >= {"cpu plain"}
    assert all(tested.values())


def test_the_text_can_be_pasted(quick: Path) -> None:
    found = doctor.text(reports.examine(tests=False), paths=False)
    assert str(quick) not in found and platform.node() not in found.split()
    for title in ("Versions", "CPU", "Memory", "GPU", "Disk", "Settings"):
        assert f"{title}\n" in found
    assert "Self-tests" not in found


def broken() -> Report:
    section = Section("settings", {"problem": "x"}, [("file", "/home/bob/config.toml\nline two")])
    section.problems.append(Problem("/home/bob/config.toml is broken", "correct it", failure=True))
    tests = Section("self_tests", {}, [("cpu avx2", "FAILED: wrong"), ("[x]", "ok")])
    tests.problems.append(Problem("this is slow", "buy another"))
    return Report([section, tests])


def test_problems_come_last_with_their_remedies() -> None:
    assert doctor.text(broken(), paths=False) == (
        "Settings\n  file          …/config.toml\n                line two\n\n"
        "Self-tests: olivine-mini on each backend, against the reference\n"
        "  cpu avx2      FAILED: wrong\n  [x]           ok\n\n"
        "1 problem and 1 thing that could be better:\n\n"
        "- …/config.toml is broken\n  correct it\n\n"
        "- this is slow\n  buy another"
    )
    assert "/home/bob/config.toml" in doctor.text(broken(), paths=True)
    assert doctor.summary([]) == "Everything works."


def test_a_terminal_gets_marks(capsys: pytest.CaptureFixture[str]) -> None:
    doctor.show(broken(), paths=False)
    shown = capsys.readouterr().out
    assert "✗ Settings" in shown and "! Self-tests" in shown
    assert "  [x]" in shown, "a label is no markup"
    assert "• …/config.toml is broken" in shown


def test_failures_make_the_exit_status(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text("prot = 1\n")
    (tmp_path / machine.KEPT).write_text(json.dumps({machine.kept_as(): 2e10}))
    found = olivine(
        "doctor", "--no-tests", OLIVINE_CONFIG=str(tmp_path / "config.toml"), OLIVINE_CACHE=str(tmp_path)
    )
    assert found.returncode == 1
    assert "- …/config.toml, line 1: there is no setting 'prot': did you mean port?" in found.stdout
    assert str(tmp_path) not in found.stdout and " 20.0 GB/s" in found.stdout
    assert broken().failed and broken().to_json(paths=False)["problems"][0]["what"].startswith("…/config")


def test_a_failed_self_test_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reports.isas, "usable", lambda name: name == "plain")

    def tests(names: list[str], tell: object) -> list[Outcome]:
        return [Outcome(name, name == "cpu plain", 0.011, 1.0, "ended by SIGILL") for name in names]

    monkeypatch.setattr(reports, "run_tests", tests)
    found = self_tests(None, lambda _: None)
    assert found.lines == [
        ("cuda", "FAILED: ended by SIGILL"),
        ("cpu plain", "ok, logits within 1.1% of the reference's (1.0 s)"),
    ]
    assert [problem.failure for problem in found.problems] == [True]
