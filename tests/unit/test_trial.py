"""What a trial is asked for by, and what is made of a device's answer about one."""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from edgepack.base.errors import UsageError
from edgepack.bundle.manifest import GRAPH, STAGES
from edgepack.bundle.service import Service
from edgepack.cli import deploy, trial
from edgepack.cli.trial_options import trial_rules
from edgepack.deploy.answers import SenselessError, read_object
from edgepack.deploy.options import TrialRules
from edgepack.deploy.split import CannotSplitError, check_split
from edgepack.deploy.transfer import InstallRequest
from edgepack.deploy.trial import TrialStatus
from edgepack.postprocess.classes import Classes, Tensors
from edgepack.postprocess.ctc import Ctc
from edgepack.postprocess.masks import Segmentation
from edgepack.postprocess.yolo import Yolo
from tests.bundles import small_bundle

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
        (["--split", "0.1"], "--split belongs to a trial"),
        (["--shadow", "1h", "--split", "-0.1"], "--split must be at least 0 and at most --share"),
        (["--shadow", "1h", "--split", "nan"], "--split must be at least 0 and at most --share"),
        (["--shadow", "1h", "--split", "1.1"], "--split must be at least 0 and at most --share"),
        (
            ["--shadow", "1h", "--share", "0.2", "--split", "0.3"],
            "--split must be at least 0 and at most --share",
        ),
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


def test_what_the_candidate_answers_it_gets() -> None:
    assert rules("--shadow", "1h", "--split", "0.05") == TrialRules(seconds=3600, split=0.05)
    assert rules("--shadow", "1h", "--split", "0.3") == TrialRules(
        seconds=3600, share=0.3, split=0.3
    )
    words = ("--shadow", "1h", "--share", "0.5", "--split", "0.3")
    assert rules(*words) == TrialRules(seconds=3600, share=0.5, split=0.3)


def test_a_device_tool_that_knows_no_split_refuses_it_by_its_word() -> None:
    request = InstallRequest(
        manifest=b"{}", signature=b"", signers=b"", by="me", session="", keep=3, wait_s=1,
        silence_s=1, trial=TrialRules(seconds=60, split=0.1),
    )  # fmt: skip
    head = json.loads(request.to_bytes().split(b"\n", 1)[0])
    assert (head["op"], head["trial"]["split"]) == ("split", 0.1)


def test_releases_that_can_answer_in_anothers_place(tmp_path: Path) -> None:
    """What split.cc reads of a candidate."""
    check_split(small_bundle(tmp_path / "plain"))
    scores = ("scores",)
    for number, spec in enumerate(
        (
            Classes(outputs=scores),
            Ctc(outputs=scores, characters=("a", "b")),
            Yolo(outputs=scores, size=(8, 8)),
        )
    ):
        check_split(small_bundle(tmp_path / str(number), postprocess=spec))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"service": Service(args=("--camera", "--track", "15"))}, "follows things from frame to"),
        ({"postprocess": Segmentation(outputs=("s",), size=(8, 8))}, "gives answers of the kind"),
        ({"postprocess": Tensors(outputs=("s",))}, "gives answers of the kind 'tensors'"),
        ({"postprocess": Yolo(outputs=("a", "b"), size=(8, 8), masks=32)}, "gives boxes with"),
    ],
)
def test_releases_that_cannot(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(CannotSplitError) as refusal:
        check_split(small_bundle(tmp_path, **changes))
    assert f"--split: tiny {message}" in refusal.value.message
    assert "without --split" in str(refusal.value.hint)


def test_models_in_a_row_and_states_cannot(tmp_path: Path) -> None:
    bundle = small_bundle(tmp_path)
    files = {**bundle.manifest.files, STAGES: bundle.manifest.files[GRAPH]}
    row = replace(bundle, manifest=replace(bundle.manifest, files=files))
    with pytest.raises(CannotSplitError, match="has models in a row"):
        check_split(row)
    (bundle.path / GRAPH).write_text('{"states": [{"input": "h", "output": "h2"}]}')
    with pytest.raises(CannotSplitError, match="keeps states from frame to frame"):
        check_split(bundle)


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
    split = RECORD | {"rules": TrialRules(split=0.05).to_dict(), "answered": 17}
    line = "answered  17 pictures by the candidate (0.05 of all are the candidate's)"
    assert line in read(split).lines()


@pytest.mark.parametrize(
    "wrong",
    [
        {"pictures": -1},
        {"answered": -1},
        {"rules": TrialRules().to_dict() | {"split": 0.5}},
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
