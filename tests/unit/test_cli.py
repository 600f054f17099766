from __future__ import annotations

import argparse
import errno
import functools
import json
import re
import shlex
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from edgepack import formats
from edgepack.base.errors import EXIT_CODES, UsageError
from edgepack.base.version import VERSION
from edgepack.boards import get_board
from edgepack.cli import COMMANDS, main, make_parser
from edgepack.cli.compile import explanation
from edgepack.cli.console import table
from edgepack.cli.examples import EXAMPLES
from edgepack.cli.options import of_memory, parse_constants, parse_shapes
from edgepack.cli.transfer import rate
from edgepack.compiler import CompiledModel
from edgepack.compiler.backend.report import LayerReport
from edgepack.deploy.remote_app import RunRequest
from edgepack.flow.doctor import cost_model_gap
from tests.onnx_models import Builder


def run(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str, str]:
    code = main(argv)
    out, err = capsys.readouterr()
    return code, out, err


def test_every_command_of_the_issue_is_there() -> None:
    names = set(COMMANDS)
    assert names >= {"boards", "doctor", "inspect", "compile", "package", "run", "bench", "board"}
    assert names >= {"deploy", "status", "rollback", "prune", "fleet", "service"}


HEAVY = {"tvm", "numpy", "cv2", "PIL", "onnx", "onnxruntime", "elftools", "yaml", "backports"}
HEAVY |= {"paramiko", "invoke", "cryptography"}


@pytest.mark.parametrize(
    "argv",
    [["boards"], [], ["--help"], ["--version"], ["doctor", "--help"], ["status", "--help"],
     ["board", "--help"], ["cache"], ["completion", "bash"], ["deploy", "--help"],
     ["fleet", "--help"]],
    ids=" ".join,
)  # fmt: skip
def test_a_trivial_command_imports_no_heavy_library(tmp_path: Path, argv: list[str]) -> None:
    """Each takes a tenth of a second and more, which every completion and script would pay."""
    code = (
        "import sys; from edgepack.cli import main\n"
        "try: main(sys.argv[1:])\n"
        "finally: print('loaded:', *sys.modules)"
    )
    command = [sys.executable, "-c", code, *argv, "--cache-dir", str(tmp_path)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    modules = done.stdout.rpartition("loaded:")[2].split()
    loaded = {name.partition(".")[0] for name in modules}
    assert {"edgepack", "argparse"} <= loaded
    assert not loaded & HEAVY
    # A CPU's cost model is asked for without the compiler around it.
    assert not {"edgepack.frontend.load", "edgepack.frontend.importer"} & set(modules)


@pytest.mark.parametrize("command", ["boards", "doctor"])
def test_wide_tables_fit_a_terminal(
    command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"edgepack.cli.{command}.table", functools.partial(table, width=80))
    _, out, _ = run(capsys, command)
    assert max(map(len, out.splitlines())) <= 80


def test_without_a_command_there_is_help(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys)
    assert (code, err) == (0, "")
    assert all(command in out for command in COMMANDS)


def test_the_version_for_programs(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "--version", "--json")
    assert (code, json.loads(out)) == (0, {"version": VERSION})
    assert run(capsys, "--version")[1] == f"edgepack {VERSION}\n"


def test_inspect_says_whether_a_model_can_be_compiled_and_what_it_takes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    long = "floor(floor(side/2-1/2)/2)+1"
    net = Builder()
    net.op("Relu", net.conv("image", 3, 8), outputs=["y"])
    shape = ["n", 3, long, "w"]
    model = net.save(tmp_path / "m.onnx", {"image": shape}, {"y": ["n", 8, None, "w"]})
    code, out, _ = run(capsys, "inspect", str(model))
    assert code == 0
    assert "image: float32 (n, 3, f(side), w)" in out
    last = "can be compiled: yes, with --shape image=1,3,224,224, or other shapes"
    assert out.splitlines()[-1] == last
    given = ("--shape", "image=1,3,16,16", "--board", "rasp3b", "--json")
    code, out, _ = run(capsys, "inspect", str(model), *given)
    found = json.loads(out)
    assert (code, found["can_be_compiled"], found["because"]) == (0, True, None)
    # At least the multiply-adds, four at a time, at the board's 1200 MHz; the input and the output.
    assert found["estimate"]["ms"] >= found["macs"] / 4 / 1200e3
    assert found["estimate"]["arena_bytes"] >= (3 + 8) * 16 * 16 * 4
    assert found["estimate"]["outputs"][0]["shape"] == [1, 8, 16, 16]


def test_a_shape_that_is_missing_hides_no_operator(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whoever gave the shape would be told only then."""
    net = Builder()
    net.op("RandomNormalLike", "x", outputs=["y"])
    model = net.save(tmp_path / "m.onnx", {"x": ["n", 3]}, {"y": ["n", 3]})
    code, out, _ = run(capsys, "inspect", str(model))
    last = out.splitlines()[-1]
    assert code == 0
    assert last.startswith("can be compiled: no, because of operators: RandomNormalLike; dynamic")


def test_memory_is_told_as_a_share_of_the_boards() -> None:
    board = get_board("rasp3b")
    assert of_memory(board, board.memory_mb << 19) == f"; 50.0% of rasp3b's {board.memory_mb} MB"
    assert of_memory(get_board("local"), 1 << 30) == ""


def test_a_value_that_is_a_commands_name_is_not_taken_for_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, _, err = run(capsys, "--boards", "deploy", "boards", "rasp3b")
    assert code == 2
    assert "file not found: deploy" in err


@pytest.mark.parametrize("command", COMMANDS)
def test_each_help_says_what_it_does_and_has_three_examples_that_work(command: str) -> None:
    parser = make_parser()
    (action,) = (one for one in parser._actions if isinstance(one, argparse._SubParsersAction))
    text = action.choices[command].format_help()
    usage, _, rest = text.partition("\n\n")
    assert len(usage.splitlines()) == 1
    assert rest.lower().startswith(COMMANDS[command].lower()[:40])
    examples = EXAMPLES[command]
    assert len(set(examples)) == len(examples) == 3
    for example in examples:
        assert f"\n  {example}\n" in text
        words = shlex.split(example.partition(" > ")[0])
        assert words[:2] == ["edgepack", command]
        # No option that is not there, no value that its type refuses, no argument too few.
        assert make_parser(words).parse_args(words[1:]).run


def test_options_are_in_groups(capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("deploy", "package", "compile", "tune", "compare"):
        with pytest.raises(SystemExit):
            make_parser().parse_args([command, "--help-all"])
        text = capsys.readouterr().out
        sections = {
            title: len(re.findall(r"^  -", body, re.MULTILINE))
            for title, body in re.findall(r"^(\S[^\n]*):\n(.*?)(?=^\S|\Z)", text, re.M | re.S)
        }
        assert sections["compiling"] > 5
        assert max(sections.values()) <= 12


def test_rare_options_are_in_a_help_of_their_own(capsys: pytest.CaptureFixture[str]) -> None:
    """`deploy --help` fits two screens of 40 lines; what it leaves out, it names."""
    texts = {}
    for option in ("--help", "--help-all"):
        with pytest.raises(SystemExit) as stop:
            make_parser().parse_args(["deploy", option])
        assert stop.value.code == 0
        texts[option] = capsys.readouterr().out
    assert len(texts["--help"].splitlines()) <= 80
    named = re.search(r"^more options \((.*)\): edgepack deploy --help-all$", texts["--help"], re.M)
    assert named is not None
    left_out = named[1].split(", ")
    assert len(left_out) == 4
    parser = make_parser()
    (action,) = (one for one in parser._actions if isinstance(one, argparse._SubParsersAction))
    for group in action.choices["deploy"]._action_groups:
        for option in (one for one in group._group_actions if one.option_strings):
            in_brief = f"  {option.option_strings[0]}" in texts["--help"]
            assert in_brief != (group.title in left_out)
            assert f"  {option.option_strings[0]}" in texts["--help-all"]


def test_the_common_commands_come_first() -> None:
    assert list(COMMANDS)[:4] == ["init", "check", "deploy", "run"]
    text = make_parser().format_help()
    assert re.search(r"\n  common commands:\n +init .*\n +check ", text)
    assert text.index("commands:") < text.index("--cache-dir")
    assert set(EXAMPLES) == set(COMMANDS)


def test_general_options_work_before_and_after_the_command() -> None:
    parser = make_parser()
    for argv in (["--json", "-v", "boards"], ["boards", "--json", "-v"]):
        args = parser.parse_args(argv)
        assert (args.json, args.verbose) == (True, 1)


def test_help_lists_the_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        make_parser().parse_args(["--help"])
    assert stop.value.code == 0
    text = capsys.readouterr().out
    for code, meaning in EXIT_CODES.items():
        assert f"{code:>3}  {meaning}" in text


def test_data_goes_to_stdout_and_is_json_on_request(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "boards", "--json")
    assert (code, err) == (0, "")
    assert {board["name"] for board in json.loads(out)} >= {"rasp3b", "pynq"}
    code, out, _ = run(capsys, "boards", "pynq")
    assert code == 0
    assert "cortex-a9" in out
    assert "clusters   cpu cortex-a9, cores 2, max_mhz 650\n" in out
    assert "[" not in out


@pytest.mark.parametrize(
    ("argv", "code", "message", "hint"),
    [
        (["boards", "rasp3c"], 2, "unknown board: rasp3c", "perhaps you meant 'rasp3b'"),
        (["fly"], 2, "unknown command: fly", "known: "),
        (["deplyo"], 2, "unknown command: deplyo", "perhaps you meant 'deploy'"),
        (["fleet", "pln"], 2, "edgepack fleet: unknown command: pln", "perhaps you meant 'plan'"),
        (["deploy", "a", "b"], 2, "too many arguments: b", None),
        (["boards", "--jsn"], 2, "unknown option: --jsn", "perhaps you meant '--json'"),
        (["compile"], 2, "no model given", "edgepack.toml"),
        (["compile", "none.onnx", "--board", "rasp3b"], 2, "no such file: none.onnx", None),
        (["inspect", "none.onnx"], 2, "none.onnx: no such file", None),
        (["run", "--device", "x", "--golden"], 2, "which deployed model?", "--name"),
        (["run", "--name", "m", "--golden"], 2, "no device given", "--device"),
        (["run", "--name", "m", "--device", "virtual", "--golden"], 2, "needs a board", "--board"),
        (["run", "--name", "m", "--device", "x"], 2, "which input?", "edgepack run photo.jpg"),
        (["deploy", "--bundle", "none.tar.gz", "--device", "x"], 5, "no such bundle", None),
        (["deploy", "--bundle", "b", "--name", "m"], 2, "goes without --name", None),
        (["deploy", "--bundle", "none.tar.gz"], 2, "no device given", "--device"),
        (["board", "up"], 2, "required: name", "--help"),
        (["board", "ssh", "none"], 12, "no virtual board is running", "board up none"),
        (["boards", "--boards", "none.toml"], 2, "file not found: none.toml", None),
        (["board", "down", "none"], 12, "no virtual board is running", "board list"),
        (["board", "up", "rasp3b", "--disk-mb", "-3"], 2, "'-3' is not a whole number", "--help"),
        (["bench", "-n", "0"], 2, "--runs: '0' is not a whole number from 1 to 1000000", "--help"),
        (["deploy", "--keep", "0"], 2, "--keep: '0' is not a whole number", "--help"),
        (["deploy", "--connect-timeout", "x"], 2, "'x' is not a whole number", "--help"),
        (["package", "-o", "/dev/null/x"], 2, "--out: not a folder: /dev/null", None),
        (["--cache-dir", "/proc/none", "boards"], 2, "cannot write to /proc", "another folder"),
        (["inspect", "."], 2, ".: not a file", None),
        (["inspect", "x.onnx", "--shape", "3"], 2, "cannot read '3'", "1,3,224,224"),
    ],
)
def test_mistakes_are_one_line_with_a_hint_and_an_exit_code(
    argv: list[str],
    code: int,
    message: str,
    hint: str | None,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    found, out, err = run(capsys, *argv)
    assert found == code, err
    assert out == ""
    assert err.startswith("error: ")
    assert message in err
    assert "Traceback" not in err
    if hint is not None:
        assert hint in err.partition("\nhint: ")[2]
    found, out, _ = run(capsys, *argv, "--json")
    assert found == code
    assert message in json.loads(out)["error"]["message"]
    assert json.loads(out)["error"]["code"] == code
    assert list(tmp_path.iterdir()) == []


def test_a_bug_is_a_traceback_and_how_to_report_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(args: argparse.Namespace, console: object) -> int:
        raise RuntimeError("planted")

    monkeypatch.setattr("edgepack.cli.boards.run", broken)
    code, _, err = run(capsys, "boards")
    assert code == 1
    assert "RuntimeError: planted" in err
    assert "please report it" in err


def test_a_file_system_that_refuses_is_no_bug(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(args: argparse.Namespace, console: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device", "dist/model.so")

    monkeypatch.setattr("edgepack.cli.boards.run", full)
    code, _, err = run(capsys, "boards")
    assert (code, err) == (2, "error: dist/model.so: No space left on device\n")


def test_an_interrupt_while_modules_are_read_is_no_bug_either() -> None:
    code = (
        "import sys, importlib.abc\n"
        "class Interrupt(importlib.abc.MetaPathFinder):\n"
        "    def find_spec(self, name, path, target=None):\n"
        "        if name == 'edgepack.cli': raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Interrupt())\n"
        "from edgepack.__main__ import entry_point\n"
        "entry_point()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (130, "error: interrupted\n")


def test_an_interrupt_has_its_own_exit_code(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(args: argparse.Namespace, console: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr("edgepack.cli.boards.run", interrupted)
    code, _, err = run(capsys, "boards")
    assert (code, err) == (130, "error: interrupted\n")


def test_run_takes_from_the_project_file_what_flags_leave_open(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.onnx").write_text("x")
    (tmp_path / "edgepack.toml").write_text(
        '[project]\nmodel = "net.onnx"\ndevice = "pi@127.0.0.1:1"\n'
    )
    code, _, err = run(capsys, "run", "--name", "other", "--golden")
    assert code == 6
    assert "127.0.0.1:1 cannot be reached" in err
    # A file that is not needed is not read.
    (tmp_path / "edgepack.toml").write_text("broken")
    assert run(capsys, "run", "--name", "m", "--device", "pi@127.0.0.1:1", "--golden")[0] == 6
    assert run(capsys, "run", "--name", "m", "--golden")[0] == 2


@pytest.mark.parametrize(
    ("words", "asked"),
    [
        (["coffee.png"], {"image": "coffee.png"}),
        (["--image", "coffee.png"], {"image": "coffee.png"}),
        (["x.NPY"], {"inputs": ["x.NPY"]}),
        (["--input", "x.npy", "--input", "y.npy"], {"inputs": ["x.npy", "y.npy"]}),
    ],
)
def test_run_takes_a_photo_by_its_place(
    words: list[str], asked: dict[str, object], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    got: list[RunRequest] = []

    def ask(device: object, root: str, request: RunRequest) -> None:
        got.append(request)
        raise UsageError("enough")

    monkeypatch.setattr("edgepack.cli.run.ask_app", ask)
    assert main(["run", *words, "--name", "m", "--device", "local"]) == 2
    (request,) = got
    assert request.image == (Path(str(asked["image"])) if "image" in asked else None)
    assert [str(path) for path in request.inputs] == asked.get("inputs", [])


def test_run_takes_one_photo(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, "run", "a.png", "--image", "b.png", "--name", "m", "--device", "x")
    assert (code, "a.png goes with neither --image nor --input" in err) == (2, True)


@pytest.mark.parametrize("command", ["quantize", "check"])
def test_a_projects_own_model_does_not_leave_the_project(
    command: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    shape = {"x": [1, 3, 8, 8]}
    for name in ("own", "other"):
        net = Builder()
        net.op("Relu", "x", outputs=["y"])
        net.save(tmp_path / f"{name}.onnx", shape, {"y": [1, 3, 8, 8]})
    (tmp_path / "edgepack.toml").write_text(
        '[project]\nmodel = "own.onnx"\n[quantize]\nimages = "."\n'
        '[preprocess]\npreset = "wrong-name"\n'
    )
    images = ["--images", "."] if command == "quantize" else []
    # By any name of the file it is the project's model, whose preprocessing is wrong.
    for model in ("own.onnx", "./own.onnx", str(tmp_path / "own.onnx")):
        code, _, err = run(capsys, command, model, *images)
        assert (code, "wrong-name" in err) == (2, True)
    _, _, err = run(capsys, command, "other.onnx", *images)
    assert "wrong-name" not in err
    assert "warning: edgepack.toml is not read, since its model is own.onnx" in err
    assert "--project edgepack.toml" in err
    # A file that is no project file is not asked for anything.
    (tmp_path / "edgepack.toml").write_text("broken")
    assert "edgepack.toml" not in run(capsys, command, "own.onnx", *images)[2]


def test_android_lib_is_for_android(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    net = Builder()
    net.op("Relu", "x", outputs=["y"])
    model = str(net.save(tmp_path / "m.onnx", {"x": [1, 4]}, {"y": [1, 4]}))
    out = str(tmp_path / "dist")
    for board in ("rasp3b", "rasp4b-64", "alpine-aarch64"):
        words = ("package", model, "--board", board, "--format", "android-lib", "-o", out)
        code, _, err = run(capsys, *words, "--static")
        assert code == 2
        assert f"android-lib is part of an Android app, and {board} runs" in err
        assert "hint: --board android-arm64" in err
    formats.check_board("android-lib", get_board("android-arm64"))
    formats.check_board("tar", get_board("rasp3b"))


def test_shapes_are_parsed() -> None:
    assert parse_shapes(["a=1,3,8,8", "b:0=4x5"]) == {"a": (1, 3, 8, 8), "b:0": (4, 5)}
    for bad in ("a", "=1", "a=", "a=1,,2", "a=-1"):
        with pytest.raises(UsageError):
            parse_shapes([bad])


def test_doctor_fails_when_a_required_tool_is_missing(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    code, out, _ = run(capsys, "doctor", "--board", "rasp3b", "--json")
    assert (code, json.loads(out)["ok"]) == (0, True)
    monkeypatch.setattr("edgepack.native.toolchain.zig_executable", lambda: None)
    code, out, _ = run(capsys, "doctor", "--board", "rasp3b")
    assert code == 4
    assert "MISSING" in out
    assert "pip install 'edgepack[build]'" in out
    # What no index has is not to be had from one.
    assert "pip install edgepack-runtime" not in out
    assert "./dev wheels arm-linux-gnueabihf" in out


def test_rates_are_bytes_per_second() -> None:
    assert [rate(text) for text in ("500", "200k", "1.5M")] == [500, 200_000, 1_500_000]


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("--limit-rate", "fast", "'fast' is not a rate"),
        ("--limit-rate", "0", "'0' is not a rate"),
        ("--retries", "-1", "'-1' is not a whole number"),
        ("--wait", "soon", "'soon' is not a whole number"),
        ("--keep", "0", "'0' is not a whole number of 1 or more"),
        ("--release-version", "1.2", "'1.2' is not a whole number"),
        ("--signers", "missing", "--signers: no such file: missing"),
    ],
)
def test_values_that_make_no_sense_are_refused(
    capsys: pytest.CaptureFixture[str], option: str, value: str, message: str
) -> None:
    code, _, err = run(capsys, "deploy", "--bundle", "x", "--device", "local", option, value)
    assert code == 2
    assert message in err


def test_a_cpu_without_a_cost_model_is_named() -> None:
    assert cost_model_gap(get_board("rasp3b")) is None
    said = cost_model_gap(get_board("aarch64"))
    assert said is not None
    assert "'generic'" in said
    assert "cortex-a72" in said


def test_values_of_inputs_are_read() -> None:
    assert parse_constants(["sr=16000", "a=b=true", "x=1,-0.5"]) == {
        "sr": 16000,
        "a=b": True,
        "x": (1, -0.5),
    }
    for bad in ("sr", "=3", "sr=", "sr=fast"):
        with pytest.raises(UsageError, match=f"cannot read '{bad}'"):
            parse_constants([bad])


def test_explain_says_why_tiles_of_winograd_are_small() -> None:
    def layer(name: str, most: int | None) -> LayerReport:
        return LayerReport(
            kernel=f"conv_{name}",
            layer=name,
            operator="Conv",
            rule="conv",
            shape=(1, 8, 4, 4),
            dtype="float16",
            exact="",
            tile="",
            macs=0,
            cycles=1.0,
            nbytes=1,
            most_results=most,
        )

    layers = [layer("free", None), layer("small", 2), layer("none", 0)]
    text = explanation(cast(CompiledModel, SimpleNamespace(layers=layers)))
    *_table, small, none = text.splitlines()
    assert small.startswith("small may have Winograd's tiles of 2x2 results: ")
    assert none.startswith("none is computed without Winograd's algorithm: ")
    assert "45 dB" in small
    assert "45 dB" in none


def test_auto_is_a_version_higher_than_any_before() -> None:
    before = int(time.time())
    for command in (["package", "m.onnx", "--board", "rasp3b"], ["deploy", "--device", "pi"]):
        given = make_parser().parse_args([*command, "--release-version", "auto"]).release_version
        assert before <= given <= time.time()
