"""What a trial is asked for by, and what is made of a device's answer about one."""

from __future__ import annotations

import argparse
import json
from typing import Any

import pytest

from edgepack.base.errors import UsageError
from edgepack.cli import deploy, trial
from edgepack.cli.trial_options import trial_rules
from edgepack.deploy.answers import SenselessError, read_object
from edgepack.deploy.options import TrialRules
from edgepack.deploy.transfer import InstallRequest
from edgepack.deploy.trial import TrialStatus

RECORD: dict[str, Any] = {
    "release": "0123456789ab", "before": "ba9876543210", "phase": "dropped", "reason": "why",
    "rules": TrialRules().to_dict(), "elapsed_s": 7200.5, "pictures": 40, "differing": 3,
    "incomparable": 2, "crashes": 1, "agreement": 0.925, "latency_ratio": 1.1,
    "largest_difference": 0.25, "peak_bytes": 12_000_000,
}  # fmt: skip


def rules(*words: str) -> TrialRules | None:
    parser = argparse.ArgumentParser()
    deploy.add(parser)
    return trial_rules(parser.parse_args(words))


def read(record: dict[str, Any], *, runs: bool = False) -> TrialStatus:
    return TrialStatus.read(read_object(json.dumps({"trial": record, "runs": runs}), "pi: trial"))


def test_rules_come_from_options() -> None:
    assert rules() is None
    assert rules("--shadow", "2h") == TrialRules(seconds=7200)
    words = ["--shadow", "1.5m", "--share", "0.5", "--max-latency", "1.3x", "--min-pictures", "7"]
    assert rules(*words, "--min-agreement", "0.9") == TrialRules(
        seconds=90, share=0.5, min_agreement=0.9, max_latency=1.3, min_pictures=7
    )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--share", "0.5"], "--share belongs to a trial"),
        (["--min-agreement", "0.5"], "--min-agreement belongs to a trial"),
        (["--shadow", "31d"], "--shadow must be more than 0 s and at most 30 d"),
        (["--shadow", "0s"], "--shadow must be more than 0 s and at most 30 d"),
        (["--shadow", "1h", "--share", "0"], "--share must be above 0 and at most 1"),
        (["--shadow", "1h", "--share", "nan"], "--share must be above 0 and at most 1"),
        (["--shadow", "1h", "--min-agreement", "98"], "--min-agreement must be between 0 and 1"),
        (["--shadow", "1h", "--max-latency", "inf"], "--max-latency must be above 0"),
        (["--shadow", "1h", "--keep-disagreements", "101"], "--keep-disagreements must be at most"),
        (["--shadow", "1h", "--service"], "--service goes without --shadow"),
    ],
)
def test_rules_that_are_none(words: list[str], message: str) -> None:
    with pytest.raises(UsageError) as refusal:
        rules(*words)
    assert message in refusal.value.message


@pytest.mark.parametrize("words", [["--shadow", "2"], ["--shadow", "1h", "--max-latency", "fast"]])
def test_words_that_are_no_times_and_ratios(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        rules(*words)
    assert f"argument {words[-2]}: {words[-1]!r} is not a" in capsys.readouterr().err


def test_an_older_device_tool_refuses_a_trial_by_its_word() -> None:
    request = InstallRequest(
        manifest=b"{}", signature=b"", signers=b"", by="me", session="", keep=3, wait_s=1,
        silence_s=1, trial=TrialRules(seconds=60),
    )  # fmt: skip
    head = json.loads(request.to_bytes().split(b"\n", 1)[0])
    # It knows "deploy" and "plan", and would activate what it is to try.
    assert head["op"] == "trial"
    assert head["trial"]["seconds"] == 60


def test_what_a_device_says_is_shown() -> None:
    lines = read(RECORD).lines()
    assert lines == [
        "trial     release 0123456789ab beside ba9876543210: dropped",
        "because   why",
        "time      7200 of 7200 s",
        "compared  40 pictures, 3 differ; 2 more give nothing that is compared",
        "agreement 92.50% (needed: 98.00%); scores differ by up to 0.25",
        "latency   1.10 x (allowed: 1.2 x)",
        "memory    peak 12.0 MB",
        "crashes   1",
    ]
    running = RECORD | {"phase": "running", "reason": "", "agreement": None, "latency_ratio": None}
    assert read(running, runs=True).interrupted is False
    assert read(running).interrupted is True
    assert "`edgepack trial resume`" in read(running).lines()[0]


@pytest.mark.parametrize(
    "wrong",
    [
        {"pictures": -1},
        {"agreement": "all"},
        {"rules": {"seconds": 60}},
        {"rules": TrialRules().to_dict() | {"share": 7}},
        {"release": None},
    ],
)
def test_an_answer_that_makes_no_sense(wrong: dict[str, Any]) -> None:
    with pytest.raises(SenselessError, match="pi: trial: trial"):
        read(RECORD | wrong)


def test_the_command_takes_one_action() -> None:
    parser = argparse.ArgumentParser()
    trial.add(parser)
    assert parser.parse_args(["status"]).action == "status"
    with pytest.raises(SystemExit):
        parser.parse_args(["decide"])
