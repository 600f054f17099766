"""A composite action's steps, run as GitHub's runner does: bash, its options, its files.

Steps that use another action are passed over: what they would set up is there already.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

_SHELL = ("bash", "--noprofile", "--norc", "-e", "-o", "pipefail")
_EXPRESSION = re.compile(r"\$\{\{\s*([\w.-]+)\s*\}\}")


@dataclass
class ActionRun:
    """What came of the steps: `outputs` are the action's."""

    outputs: dict[str, str] = field(default_factory=dict)
    log: dict[str, str] = field(default_factory=dict)
    """What each step printed, by its name."""


class StepFailedError(Exception):
    """A step ended with another status than 0."""


def run_action(
    action: Path, workspace: Path, inputs: Mapping[str, str], env: Mapping[str, str]
) -> ActionRun:
    """Run all steps of the action in the folder `action`, in `workspace`, with files beside it."""
    config = yaml.safe_load((action / "action.yml").read_text())
    assert not set(inputs) - set(config["inputs"]), "an input that the action does not have"
    known = {name: str(one.get("default", "")) for name, one in config["inputs"].items()}
    values = {f"inputs.{name}": value for name, value in {**known, **inputs}.items()}
    files = workspace.parent / "runner"
    files.mkdir()
    run, path, more = ActionRun(), [env["PATH"]], dict[str, str]()
    for number, step in enumerate(config["runs"]["steps"]):
        if "run" not in step:
            continue
        assert step["shell"] == "bash", "a composite action names its shell"
        names = ("GITHUB_OUTPUT", "GITHUB_ENV", "GITHUB_PATH", "GITHUB_STEP_SUMMARY")
        told = {name: files / f"{number}.{name.lower()}" for name in names}
        for file in told.values():
            file.touch()
        script = files / f"{number}.sh"
        script.write_text(_filled(step["run"], values))
        own = {key: _filled(value, values) for key, value in step.get("env", {}).items()}
        done = subprocess.run(
            [*_SHELL, script],
            cwd=workspace,
            env={
                **env, **more, **own, **{name: str(file) for name, file in told.items()},
                "PATH": os.pathsep.join(path), "CI": "true", "GITHUB_ACTIONS": "true",
                "GITHUB_ACTION_PATH": str(action), "GITHUB_WORKSPACE": str(workspace),
                "RUNNER_TEMP": str(files),
            },
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            check=False,
        )  # fmt: skip
        name = step.get("name", str(number))
        run.log[name] = done.stdout
        if done.returncode:
            raise StepFailedError(f"{name}: {done.returncode}\n{done.stdout[-4000:]}")
        if "id" in step:
            said = read_file(told["GITHUB_OUTPUT"].read_text())
            values |= {f"steps.{step['id']}.outputs.{key}": value for key, value in said.items()}
        more |= read_file(told["GITHUB_ENV"].read_text())
        path[:0] = told["GITHUB_PATH"].read_text().split("\n")[:-1][::-1]
    for name, output in config["outputs"].items():
        run.outputs[name] = _filled(output["value"], values)
    return run


def read_file(text: str) -> dict[str, str]:
    """Names and values of GITHUB_OUTPUT or GITHUB_ENV: `name=value`, or `name<<END` and lines."""
    found, lines = dict[str, str](), iter(text.splitlines())
    for line in lines:
        if match := re.fullmatch(r"([\w-]+)<<(\S+)", line):
            value = []
            for inner in lines:
                if inner == match[2]:
                    break
                value.append(inner)
            else:
                raise ValueError(f"no end of {match[1]}")
            found[match[1]] = "\n".join(value)
            continue
        name, equals, value_ = line.partition("=")
        if not equals or not re.fullmatch(r"[\w-]+", name):
            raise ValueError(f"invalid format: {line!r}")
        found[name] = value_
    return found


def _filled(text: Any, values: Mapping[str, str]) -> str:
    return _EXPRESSION.sub(lambda match: values.get(match[1], ""), str(text))
