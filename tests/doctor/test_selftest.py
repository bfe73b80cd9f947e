"""The self-tests' child process: what it tells, and what is told of one that dies."""

from __future__ import annotations

import sys

import pytest

from olivine.doctor import selftest
from olivine.doctor.selftest import Outcome, run_tests

# A child that fails as the name of the test says.
CHILD = """
import json, os, signal, sys, time
for name in sys.argv[1:]:
    print(json.dumps({"begin": name}), flush=True)
    if name == "dies": os.kill(os.getpid(), signal.SIGILL)
    if name == "raises": raise SystemExit("out of luck")
    if name == "hangs": time.sleep(60)
    print("a library says hello", flush=True)
    print(json.dumps({"name": name, "ok": True, "error": 0.01, "seconds": 1.0, "problem": ""}), flush=True)
"""


def outcomes(*names: str, child: str = CHILD) -> list[Outcome]:
    return run_tests(names, command=[sys.executable, "-S", "-c", child])


def test_a_child_that_dies_fails_one_test_and_the_others_go_on() -> None:
    begun: list[str] = []
    command = [sys.executable, "-S", "-c", CHILD]
    found = run_tests(["one", "dies", "two", "raises", "three"], begun.append, command)
    assert begun == ["one", "dies", "two", "raises", "three"]
    assert [(each.name, each.ok) for each in found] == [
        ("one", True),
        ("dies", False),
        ("two", True),
        ("raises", False),
        ("three", True),
    ]
    assert found[1].problem == "the process was ended by SIGILL"
    assert found[3].problem == "out of luck"


def test_a_child_that_hangs_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selftest, "LONGEST", 0.5)
    (found,) = outcomes("hangs")
    assert not found.ok and found.problem.startswith("it took longer than")


def test_a_child_that_hangs_before_its_test_begins_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selftest, "LONGEST", 0.1)
    (found,) = outcomes("one", child="import time; time.sleep(60)")
    assert not found.ok and found.problem.startswith("it took longer than")


def test_a_child_that_never_starts_fails_them_all() -> None:
    assert [each.problem for each in outcomes("one", "two", child="1/0")] == ["the test did not start"] * 2
    assert run_tests([]) == []


def test_logits_that_are_far_from_the_reference_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    np = pytest.importorskip("numpy")
    expected = np.random.default_rng(0).normal(size=(20, 50))

    def outcome(change: float) -> dict[str, object]:
        monkeypatch.setattr(selftest, "_logits", lambda device, *, generated: expected + change * generated)
        return selftest._outcome("reference", expected)

    assert outcome(0.0)["ok"] and outcome(0.04)["ok"]
    assert not outcome(0.06)["ok"]
    assert "differ from the reference by 6." in str(outcome(0.06)["problem"])
    assert outcome(float("nan")) == {"ok": False, "problem": "the logits are not finite"}


def test_an_instruction_set_that_is_not_there_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    selftest.main(["cpu none"])
    assert "there is no none here" in capsys.readouterr().out
