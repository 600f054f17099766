"""Writes what docs/reference has of the command line and the public API.

cli.md, api.md, meanings.md, edgepack.1 for man, and output.schema.json: what --json prints. In
schemas/, those of the files that edgepack reads: see file_schemas.py.

`--check` writes nothing and exits with 1 if a file is out of date.
"""

from __future__ import annotations

import argparse
import dataclasses
import inspect
import json
import os
import sys
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent / "reference"
FILE_SCHEMAS = HERE.parents[1] / "schemas"
HEAD = "<!-- Made by docs/generate.py: change the source, not this file. -->\n"


def cli_page() -> str:
    """Every command's help."""
    from edgepack.cli import make_parser

    os.environ["COLUMNS"] = "96"
    parser = make_parser()
    parts = [HEAD, "# Command line\n", f"```\n{parser.format_help()}```\n"]
    for title, text in _helps(parser, "edgepack"):
        # One level down for each action of a command.
        parts.append(f"{'#' * (title.count(' ') + 1)} {title}\n\n```\n{text}```\n")
    return "\n".join(parts)


def man_page() -> str:
    """edgepack(1), for man: every command's help, as it is."""
    from edgepack.base.version import VERSION
    from edgepack.cli import make_parser

    os.environ["COLUMNS"] = "76"
    parser = make_parser()
    blocks = [("edgepack", parser.format_help()), *_helps(parser, "edgepack")]
    lines = [
        '.\\" Made by docs/generate.py: change the source, not this file.',
        f'.TH EDGEPACK 1 "" "edgepack {VERSION}" "User Commands"',
        ".SH NAME",
        f"edgepack \\- {parser.description}",
        ".SH SYNOPSIS",
        ".B edgepack",
        ".I COMMAND",
        "[\\fIARGUMENT\\fR ...]",
    ]
    for title, text in blocks:
        lines += [f'.SH "{title}"', ".nf", *map(_roff, text.splitlines()), ".fi"]
    return "\n".join(lines) + "\n"


def _helps(parser: argparse.ArgumentParser, name: str) -> Iterator[tuple[str, str]]:
    """Each command, and each action of one, with its help."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for word, command in action.choices.items():
                yield f"{name} {word}", command.format_help()
                yield from _helps(command, f"{name} {word}")


def _roff(line: str) -> str:
    """A line of text as roff has it: no escapes, no requests, plain dashes and quotes."""
    for plain, escaped in (("\\", "\\e"), ("-", "\\-"), ("'", "\\(aq"), ("`", "\\(ga")):
        line = line.replace(plain, escaped)
    return f"\\&{line}" if line.startswith(".") else line


def meanings_page() -> str:
    """The table of what is compiled where ONNX and onnxruntime differ."""
    from edgepack.model.meanings import MEANINGS

    lines = [
        HEAD,
        "# Where ONNX and onnxruntime differ\n",
        "ONNX's text leaves some results undefined, and onnxruntime differs from it in others.",
        "This table lists the results of compiled models. `package` uses the same table",
        "(`edgepack/model/meanings.py`) to compare a compiled model with onnxruntime. If PyTorch",
        "defines a result, edgepack follows PyTorch, because most models come from there.\n",
        "| operator | form | ONNX | onnxruntime | compiled |",
        "|---|---|---|---|---|",
    ]
    for item in MEANINGS:
        cells = (item.operator, item.form, item.onnx, item.onnxruntime, item.taken)
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines) + "\n"


def api_page() -> str:
    """Signature and docstring of everything in edgepack.NAMES, and of the methods of classes."""
    import edgepack

    parts = [HEAD, "# Python API\n", inspect.cleandoc(edgepack.__doc__ or "") + "\n"]
    for name in edgepack.NAMES:
        thing = getattr(edgepack, name)
        if not callable(thing):
            continue
        parts += [f"## {name}\n", f"`from edgepack import {name}`\n"]
        parts.append(f"```python\n{_heading(name, thing)}\n```\n")
        parts.append(inspect.cleandoc(thing.__doc__ or "") + "\n")
        if inspect.isclass(thing):
            parts += _members(thing)
    return "\n".join(parts)


def _heading(name: str, thing: Any) -> str:
    """What a function is called with and gives; what a class is made of."""
    if not inspect.isclass(thing):
        return f"{name}{_signature(thing)}"
    if issubclass(thing, Exception):
        return f"class {name}({thing.__bases__[0].__name__})"
    if getattr(thing, "_is_protocol", False):
        return f"class {name}(Protocol)"
    return f"class {name}{_signature(thing, returns=False)}"


def _members(kind: type) -> Iterator[str]:
    """The public methods and properties that a class defines itself."""
    for name, member in vars(kind).items():
        doc = inspect.getdoc(member)
        if name.startswith("_") or not doc:
            continue
        if isinstance(member, property):
            hint = inspect.signature(member.fget).return_annotation if member.fget else ""
            heading = f"{kind.__name__}.{name}: {hint}"
        elif isinstance(member, classmethod | staticmethod) or inspect.isfunction(member):
            heading = f"{kind.__name__}.{name}{_signature(getattr(kind, name), bound=True)}"
        else:
            continue
        yield f"```python\n{heading}\n```\n"
        yield doc + "\n"


def _signature(thing: Any, *, returns: bool = True, bound: bool = False) -> str:
    """Parameters, one a line, with types and defaults; after a `*` they go by name only."""
    signature = inspect.signature(thing)
    given = list(signature.parameters.values())
    if bound and given[:1] and given[0].name == "self":
        given = given[1:]
    lines = []
    marked = False
    for parameter in given:
        if parameter.kind is parameter.KEYWORD_ONLY and not marked:
            marked = True
            lines.append("*")
        stars = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}
        line = f"{stars.get(parameter.kind, '')}{parameter.name}: {parameter.annotation}"
        if parameter.default is not parameter.empty:
            line += f" = {_default(parameter.default)}"
        lines.append(line)
    result = f" -> {signature.return_annotation}" if returns else ""
    if not lines:
        return f"(){result}"
    return "(\n" + "".join(f"    {line},\n" for line in lines) + f"){result}"


def _default(value: object) -> str:
    """As a reader would write it: what is no plain value goes by the name of its class."""
    if value is None or isinstance(value, str | int | float | tuple | Path):
        return repr(value)
    return "..." if repr(value) == "<factory>" else f"{type(value).__name__}()"


def schema_page() -> str:
    """JSON Schema (draft 2020-12) of what --json prints, as far as that is a typed record."""
    from edgepack.base.errors import EXIT_CODES
    from edgepack.compiler.backend.report import Estimate
    from edgepack.deploy.deploy import DeployPlan, Report
    from edgepack.device.facts import DeviceFacts
    from edgepack.flow.dry_run import DryRun, Part
    from edgepack.frontend.inspect import ModelInfo
    from edgepack.gate.gate import Problem
    from edgepack.virtual.state import VirtualBoard

    text, number = {"type": "string"}, {"type": "integer"}
    steps = {"type": "array", "items": _object({"kind": text, "text": text})}
    plan = _record(DeployPlan, steps=steps)
    perhaps = {name: _or_null(schema) for name, schema in plan["properties"].items()}
    dry_run = {
        "exact": {"type": "boolean"},
        "device": text,
        "board": text,
        "facts": _or_null(_record(DeviceFacts)),
        "problems": {"type": "array", "items": _record(Problem)},
        "parts": {"type": "array", "items": _record(Part)},
        "stages": {"type": "array", "items": text},
        "sinks": {"type": "array", "items": text},
        "bundle_bytes": number,
    }
    known = {"device", "board", "facts", "problems", "parts", "stages", "sinks"}
    assert known <= DryRun.__dataclass_fields__.keys()
    error = {"code": {"enum": list(EXIT_CODES)}, "message": text, "hint": _or_null(text)}
    inspect_more = {
        "can_be_compiled": {"type": "boolean"},
        "because": _or_null(text),
        "estimate": _or_null(_record(Estimate)),
    }
    outputs = {
        "error": _object({"error": _object(error)}),
        "board up": _record(VirtualBoard),
        "board list": {"type": "array", "items": _record(VirtualBoard)},
        "deploy": _record(Report),
        "deploy --dry-run": _object(perhaps | dry_run),
        "deploy --dry-run --bundle": plan,
        "inspect": _object(_record(ModelInfo)["properties"] | inspect_more),
    }
    outputs |= _asked_of_devices() | _of_fleets() | _of_this_machine()
    outputs |= _of_projects() | _of_bundles()
    head = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$comment": "Made by docs/generate.py: change the source, not this file.",
        "title": "What edgepack COMMAND --json prints: $defs has it by command",
    }
    return json.dumps({**head, "$defs": outputs}, indent=1) + "\n"


_TEXT, _NUMBER, _COUNT = {"type": "string"}, {"type": "number"}, {"type": "integer"}
_TEXTS = {"type": "array", "items": _TEXT}


def _asked_of_devices() -> dict[str, Any]:
    """What edgepack-run and edgepack-device print, which is passed on as it is."""
    from edgepack.deploy.ab_timing import AbTiming
    from edgepack.deploy.answers import Drift, HealthOutcome, Holder
    from edgepack.deploy.app_answers import Bench, Class, Deviation, LayerTime
    from edgepack.deploy.conditions import Conditions
    from edgepack.deploy.processor_timing import PROCESSORS, Use
    from edgepack.deploy.stage_times import PartTime, StageTimes

    times = ("load_ms", "decode_ms", "preprocess_ms", "run_ms")
    output = _object(
        {"name": _TEXT, "dtype": _TEXT, "shape": _list(_COUNT)}, may={"bound": _list(_COUNT)}
    )
    top = _object({"index": _COUNT, "score": _NUMBER}, may={"label": _TEXT})
    assert top["properties"].keys() == Class.__dataclass_fields__.keys()
    logs = {"service": _TEXT, "kind": _TEXT, "lines": _TEXTS}
    service = dict.fromkeys(("service", "kind", "root", "account"), _TEXT)
    service_status = {"service": _TEXT, "kind": _or_null(_TEXT), "text": _TEXT}
    layer = _record(LayerTime)
    layer["required"].remove("gflops")
    layer["properties"] |= {"gflops": _NUMBER, "macs": _COUNT}
    bench = _record(Bench)  # as the app has it, which knows of no emulator
    del bench["properties"]["emulated"]
    bench["required"].remove("emulated")
    profile = _object({"runs": _COUNT, "overhead_ms": _NUMBER, "layers": _list(layer)})
    app = {
        "edgepack": _TEXT,
        "model": _TEXT,
        "threads": _COUNT,
        "cpus": _list(_COUNT),
        "rss_peak_bytes": _COUNT,
        "arena_bytes": _COUNT,
        "params_bytes": _COUNT,
        "workspace_peak_bytes": _COUNT,
        "outputs": _list(output),
        "emulated": {"type": "boolean"},
    }
    perhaps = {
        **dict.fromkeys(times, _NUMBER),
        "image": _TEXT,
        "mtime_ns": _COUNT,
        **_results(top),
        "more": _list(_object({"image": _TEXT}, may=_results(top))),
        "expected": _record(Deviation, ok={"type": "boolean"}),
    }
    release = _object(
        {
            **dict.fromkeys(
                ("release", "name", "board", "model", "model_sha256", "since", "by"), _TEXT
            ),
            "version": _COUNT,
        },
        may={
            "signer": _or_null(_TEXT),
            "compared": _or_null(_object({"emulated": _TEXTS, "local": _TEXTS})),
            "health": _or_null(_optional(_record(HealthOutcome), "outcome", "at")),
        },
    )
    status = _object(
        {
            "tool": _TEXT,
            "releases": _list({"type": "object"}),
            "store": _object({"blobs": _COUNT, "bytes": _COUNT}),
            "signers": _TEXTS,
        },
        may={
            "current": _or_null(release),
            "previous": _or_null(release),
            "pending": _or_null(_object({"release": _TEXT})),
            "now": _TEXT,
            "newest": _or_null(
                _object(
                    {"release": _TEXT, "version": _COUNT, "at": _TEXT},
                    may={"valid_until": _or_null(_TEXT)},
                )
            ),
            "processor": {"enum": ["gpu", "cpu", None]},
            "drift": _or_null(_list(_record(Drift))),
            "lock": _or_null(_record(Holder)),
        },
    )
    part = _record(PartTime, bench=_record(Bench), profile=profile)
    part["required"].remove("profile")  # of --profile, of models after the first
    names = ("parts_ms", "time_ratio", "memory_ratio")
    ratios = dict.fromkeys(names, _NUMBER)
    stage_times = _record(StageTimes, whole=_record(Bench), parts=_list(part), **ratios)
    conditions = _object(dict.fromkeys(("before", "after"), _record(Conditions)))
    compared = _record(AbTiming, before=_record(Conditions), after=_record(Conditions))
    # Of processors, not of releases.
    uses = _object(dict.fromkeys(PROCESSORS, _record(Use)))
    compared["properties"] |= {"uses": uses, "gpu": _TEXT}
    return {
        "run": _object(app, may=perhaps),
        "bench": _object(
            {**app, "bench": bench, "conditions": conditions},
            may={**perhaps, "profile": profile, "stage_times": stage_times},
        ),
        "bench --compare": compared,
        "status": status,
        "rollback": _object({"release": _TEXT}, may={"before": _or_null(_TEXT)}),
        "trial": _object({"runs": {"type": "boolean"}, "trial": _trial()}),
        "prune": _object({"removed": _TEXTS}),
        "logs": _object(logs),
        "service install": _object(service),
        "service remove": _object({"service": _TEXT, "removed": {"type": "boolean"}}),
        "service show": _object({"service": _TEXT, "text": _TEXT}),
        "service status": _object({**service_status, "running": {"type": "boolean"}}),
    }


def _trial() -> dict[str, Any]:
    """A trial's record, as the device tool writes it."""
    rules = dict.fromkeys(("seconds", "share", "split", "min_agreement", "max_latency"), _NUMBER)
    texts = ("release", "before", "by", "began_at", "ended_at", "phase", "reason")
    counts = ("pictures", "differing", "incomparable", "kept", "answered", "crashes", "scored")
    sums = ("agreed", "difference", "largest_difference", "current_ms", "candidate_ms")
    return _object(
        {
            **dict.fromkeys(texts, _TEXT),
            **dict.fromkeys((*counts, "peak_bytes"), _COUNT),
            **dict.fromkeys(("elapsed_s", *sums), _NUMBER),
            **dict.fromkeys(("agreement", "latency_ratio"), _or_null(_NUMBER)),
            "rules": _object(
                {**rules, **dict.fromkeys(("min_pictures", "keep_disagreements"), _COUNT)}
            ),
        }
    )


def _of_fleets() -> dict[str, Any]:
    """A rollout's report, also of what only asks."""
    from edgepack.fleet.report import ROW_KEYS

    row = _object({key: {} for key in ROW_KEYS}, may={"ok": {"type": "boolean"}})
    counts = {"type": "object", "additionalProperties": _COUNT}
    report = _object(
        {
            **dict.fromkeys(("fleet", "model", "action", "status", "at"), _TEXT),
            "schema": _COUNT,
            "reason": _or_null(_TEXT),
            "seconds": _NUMBER,
            "devices_total": _COUNT,
            "devices_ok": _COUNT,
            "outcomes": counts,
            "releases": {"type": "object", "additionalProperties": counts},
            "waves": _list(_object({"wave": _TEXT, "devices": _COUNT})),
            "devices": _list(row),
        }
    )
    device = _object(
        {
            **dict.fromkeys(("device", "address", "wave"), _TEXT),
            "board": _or_null(_TEXT),
            **dict.fromkeys(("jump", "groups"), _TEXTS),
            "labels": {"type": "object", "additionalProperties": _TEXT},
        }
    )
    plan = _object(
        {
            "fleet": _TEXT,
            **dict.fromkeys(("devices", "todo"), _COUNT),
            "boards": counts,
            "waves": _list(_object({"wave": _TEXT, "devices": _COUNT, "todo": _TEXTS})),
            "list": _list(device),
        }
    )
    actions = ("deploy", "status", "rollback", "trust", "report")
    dry = {f"fleet {action} --dry-run": plan for action in ("deploy", "rollback", "trust")}
    return {**{f"fleet {action}": report for action in actions}, "fleet plan": plan, **dry}


def _of_this_machine() -> dict[str, Any]:
    """Commands that ask no device, or measure one against something else."""
    from edgepack.quantization.mixed import InFloat
    from edgepack.quantization.quantize import Agreement, LayerNoise

    size = {"size_bytes": _COUNT}
    kind = {"kind": _TEXT, "entries": _COUNT, **size}
    kind |= dict.fromkeys(("last_used_days", "longest_unused_days"), _COUNT)
    removed = _object({"kind": _TEXT, "path": _TEXT, "unused_days": _COUNT, **size})
    evaluated = {"photos": _COUNT, "device_name": _or_null(_TEXT), "labels": _TEXTS}
    shares = _object({"top1": _NUMBER, "top5": _NUMBER})
    seen = {"expected": _COUNT, "seen": _COUNT, "count": _COUNT}
    differing = {"image": _TEXT, "expected": _COUNT}
    differing |= dict.fromkeys(("reference", "device"), _list(_COUNT))
    ratio = dict.fromkeys(("default_ms", "ms", "ratio", "low", "high"), _NUMBER)
    return {
        "cache": _object({"folder": _TEXT, "kinds": _list(_object(kind)), **size}),
        "cache prune": _object(
            {
                "dry_run": {"type": "boolean"},
                "removed": _list(removed),
                "in_use": _TEXTS,
                "freed_bytes": _COUNT,
                "left_bytes": _COUNT,
            }
        ),
        "tune": _of_models(
            {
                **dict.fromkeys(("records", "cpu", "compiler", "model_sha256"), _TEXT),
                **dict.fromkeys(("trials", "known", "wrong", "left", "repeated_blocks"), _COUNT),
                "noise": _or_null(_NUMBER),
                "conditions": _TEXTS,
                "confirmation": _or_null(
                    _object({"kept": {"type": "boolean"}, **ratio, "blocks": _COUNT})
                ),
                "kernels": _list(_object({"kernel": _TEXT, "choice": _TEXT, **ratio})),
            }
        ),
        "tune --fit": _object(
            {
                **dict.fromkeys(("cpu", "model"), _TEXT),
                "figures": _list(_object({"name": _TEXT, "in_use": _NUMBER, "fitted": _NUMBER})),
                **dict.fromkeys(("fitted_pairs", "pairs"), _COUNT),
                **dict.fromkeys(("fitted_before", "fitted_after", "before", "after"), _NUMBER),
                "proposed": {"type": "boolean"},
            }
        ),
        "matrix": _object(
            {
                "include": _list(
                    _object(
                        dict.fromkeys(("project", "name", "board", "triple", "debian_arch"), _TEXT)
                    )
                )
            }
        ),
        "evaluate": {
            "anyOf": [
                _object(
                    {
                        **evaluated,
                        "reference": shares,
                        "device": _or_null(shares),
                        "confusion": _list(_object(seen)),
                        "differ": _list(_object(differing)),
                    }
                ),
                _of_boxes(evaluated),
                _of_rows(),
                _of_text(),
            ]
        },
        "quantize": _of_models(
            {
                "file": _TEXT,
                "bytes": _COUNT,
                **dict.fromkeys(("calibrated", "judged"), _COUNT),
                "calibration": _TEXT,
                **dict.fromkeys(("agreement", "all_int8"), _record(Agreement)),
                "in_float": _list(_record(InFloat)),
                "cost": _NUMBER,
                "layers": _list(_record(LayerNoise)),
                "untouched": _list(_object({"layer": _TEXT, "operator": _TEXT})),
            }
        ),
    }


def _of_models(one: dict[str, Any]) -> dict[str, Any]:
    """Of the project's model, or of several: it has stages."""
    several = _object({"models": _list(_object({"name": _TEXT, **one}))})
    return {"anyOf": [_object(one), several]}


def _of_projects() -> dict[str, Any]:
    """Commands for edgepack.toml and what is made of it."""
    from edgepack.compiler.backend.report import LayerReport
    from edgepack.flow.check import OutputRange
    from edgepack.flow.compare import Changed, Compared, LayerError
    from edgepack.flow.doctor import Check
    from edgepack.model import TensorInfo
    from edgepack.postprocess.results import Found

    yes_or_no = {"type": "boolean"}
    top = _object({"index": _COUNT, "score": _NUMBER}, may={"label": _TEXT})
    assert top["properties"].keys() == Found.__dataclass_fields__.keys()
    tensors = _list(_record(TensorInfo))
    made = {
        **dict.fromkeys(("folder", "board", "toolchain", "toolchain_reason"), _TEXT),
        **dict.fromkeys(("arena_bytes", "states_bytes"), _COUNT),
        **dict.fromkeys(("params_bytes", "library_bytes"), _COUNT),
        "model_sha256": _TEXT,
        "in_float": {"type": "object", "additionalProperties": _TEXT},
    }
    explained = {"has_cost_model": yes_or_no, "layers": _list(_record(LayerReport))}
    # What is not finite is null.
    errors = dict.fromkeys(("max_abs_error", "max_abs_reference"), _or_null(_NUMBER))
    layers = _list(_record(LayerError, **errors, relative_error=_or_null(_NUMBER)))
    compared = {
        "board": _TEXT,
        "cpu": _TEXT,
        "tolerance": _NUMBER,
        "calls": _COUNT,
        "same_plan": yes_or_no,
        "first_diverging": _or_null(_COUNT),
        "layers": layers,
    }
    assert {
        "board",
        "cpu",
        "tolerance",
        "calls",
        "same_plan",
    } <= Compared.__dataclass_fields__.keys()
    output = {"max_abs_difference": _or_null(_NUMBER), "max_abs_other": _NUMBER}
    changed = {
        "current": _TEXT,
        "other": _TEXT,
        "facts": {
            "type": "object",
            "additionalProperties": _object({"current": _TEXT, "other": _TEXT}),
        },
        "files": _TEXTS,
        "output": _object(output),
        "first_differing": _or_null(_COUNT),
        "layers": layers,
    }
    assert {"current", "other", "facts", "files"} <= Changed.__dataclass_fields__.keys()
    line = {"key": _TEXT, "value": {}, "why": _TEXT, "guess": yes_or_no}
    return {
        "init": _object(
            {
                "path": _TEXT,
                "labels": _or_null(_TEXT),
                "schema": _TEXT,
                "lists": _TEXTS,
                "tensors": _TEXTS,
                "keys": _list(_object(line)),
                "open": _TEXTS,
                "next": _TEXTS,
            }
        ),
        "check": _object(
            {
                "model": _TEXT,
                "inputs": tensors,
                "outputs": tensors,
                "preprocess": yes_or_no,
                "seen": _list(
                    _object(
                        {"image": _or_null(_TEXT)},
                        may={**_results(top), "ranges": _list(_record(OutputRange))},
                    )
                ),
                "expected": _or_null(_COUNT),
            }
        ),
        "check --changed": _list(_object({"project": _TEXT, "problem": _or_null(_TEXT)})),
        "compile": _object(made),
        "compile --explain": _object({**made, **explained}),
        "compare": _object(compared, may={"stages": _list(_object({"stage": _TEXT, **compared}))}),
        "compare --release": _object(
            changed,
            may={"stages": _list(_object({"stage": _TEXT, "changed": _or_null(_object(changed))}))},
        ),
        "doctor": _object({"board": _TEXT, "ok": yes_or_no, "tools": _list(_record(Check))}),
    }


def _of_text() -> dict[str, Any]:
    """What `evaluate` says of a model that reads: error rates, and each photo's text."""
    rates = _object({"letters": _NUMBER, "words": _NUMBER})
    read = {
        **dict.fromkeys(("photo", "expected", "reference"), _TEXT),
        "device": _or_null(_TEXT),
    }
    return _object(
        {
            "photos": _COUNT,
            "reference": rates,
            "device": _or_null(rates),
            "device_name": _or_null(_TEXT),
            "read": _list(_object(read)),
        }
    )


def _of_rows() -> dict[str, Any]:
    """What `evaluate` says of a model of tables."""
    perhaps = _or_null(_NUMBER)
    figures = {
        "anyOf": [_object({"accuracy": _NUMBER}), _object({"mae": perhaps, "rmse": perhaps})]
    }
    return _object(
        {
            "rows": _COUNT,
            **dict.fromkeys(("target", "output"), _TEXT),
            "kind": {"enum": ["classes", "values"]},
            "reference": figures,
            "device": _or_null(figures),
            "device_name": _or_null(_TEXT),
            "largest_difference": perhaps,
            "confusion": _list(_object({"expected": _NUMBER, "seen": _NUMBER, "count": _COUNT})),
            "differ": _list(
                _object(
                    {
                        "line": _COUNT,
                        "expected": _NUMBER,
                        "reference": perhaps,
                        "device": perhaps,
                    }
                )
            ),
            "labels": _TEXTS,
        }
    )


def _of_boxes(evaluated: Mapping[str, Any]) -> dict[str, Any]:
    """What `evaluate` says of a detector."""
    perhaps = _or_null(_NUMBER)
    sizes = _object(dict.fromkeys(("small", "medium", "large"), perhaps))
    means = _object({"map50": perhaps, "map": perhaps, "by_size": sizes})
    own = _object({"ap50": perhaps, "ap": perhaps})
    masks = ("masks", "device_masks")
    sides = {"reference": own, **dict.fromkeys(("device", *masks), _or_null(own))}
    return _object(
        {
            **evaluated,
            "objects": _COUNT,
            "reference": means,
            **dict.fromkeys(("device", *masks), _or_null(means)),
            "without_masks": _or_null(_TEXT),
            "classes": _list(
                _object({"index": _COUNT, "label": _TEXT, "objects": _COUNT, **sides})
            ),
        }
    )


def _of_bundles() -> dict[str, Any]:
    """Commands for bundles and keys; profiles of boards; the command line itself."""
    from edgepack.boards import Cluster, VirtualProfile

    texts = ("name", "title", "triple", "cpu", "float_abi", "libc", "glibc", "os", "toolchain")
    board = _object(
        {
            **dict.fromkeys((*texts, "origin"), _TEXT),
            **dict.fromkeys(("features", "hwcaps", "has"), _TEXTS),
            "clusters": _list(_record(Cluster)),
            "memory_mb": _COUNT,
            "virtual": _or_null(_record(VirtualProfile)),
            "cost_model": _or_null(_TEXT),
        }
    )
    bundle = {"bundle": _TEXT, "release": _TEXT}
    package = dict.fromkeys(("format", "package", "package_sha256", "board"), _TEXT)
    sizes = dict.fromkeys(("package_bytes", "arena_bytes", "params_bytes"), _COUNT)
    signature = dict.fromkeys(("fingerprint", "principal"), _or_null(_TEXT))
    compared = _object(dict.fromkeys(("emulated", "local"), _TEXTS))
    return {
        "package": _object({**bundle, **package, **sizes}),
        "sign": _object({**bundle, "fingerprint": _TEXT}),
        "verify": _object(
            {
                **bundle,
                "files": _COUNT,
                "bytes": _COUNT,
                **signature,
                "compared": _or_null(compared),
            }
        ),
        "sdk": _object(
            dict.fromkeys(("sdk", "board", "triple", "glibc", "shared", "static", "wheel"), _TEXT)
            | {"shared_bytes": _COUNT}
        ),
        "keygen": _object(dict.fromkeys(("key", "public", "fingerprint", "allowed_signer"), _TEXT)),
        "boards": {"anyOf": [_list(board), board]},
        "board down": _object({"name": _TEXT, "running": {"type": "boolean"}}),
        "board ssh-config": _object({"name": _TEXT, "ssh_config": _TEXT}),
        "report": _object(
            {"path": _TEXT, "pages": _list(_object({"file": _TEXT, "kind": _TEXT, "at": _TEXT}))}
        ),
        "schema": {"anyOf": [_object({"path": _TEXT}), _object({"title": _TEXT})]},
        "completion": _object({"shell": _TEXT, "script": _TEXT}),
        "--version": _object({"version": _TEXT}),
    }


def _results(top: dict[str, Any]) -> dict[str, Any]:
    """What one kind of postprocessing gives; `top` is a class and its score."""
    label = {"label": _TEXT}
    box = {**top["properties"], "box": _list(_NUMBER)}
    mask = _object({"size": _list(_COUNT), "counts": _TEXT})
    return {
        "top": _list(top),
        "boxes": _list(
            _object(
                {key: box[key] for key in box if key != "label"},
                may={
                    **label,
                    "points": _list(_list(_NUMBER)),
                    "mask": mask,
                    "answers": {"type": "object"},
                },
            )
        ),
        "keypoints": _list(
            _object({"index": _COUNT, "score": _NUMBER, "point": _list(_NUMBER)}, may=label)
        ),
        "tensors": _list(_object({"name": _TEXT, "values": _list(_NUMBER)})),
        "areas": _list(
            _object({"index": _COUNT, "pixels": _COUNT, "runs": _list(_COUNT)}, may=label)
        ),
        "text": _list(_object({"text": _TEXT, "score": _NUMBER})),
        "stages": _list(
            _object(
                {"stage": _TEXT, "boxes": _COUNT, "dropped": _COUNT, "failed": _COUNT},
                may={"run_ms": _NUMBER},
            )
        ),
    }


def _list(items: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": items}


def _optional(schema: dict[str, Any], *required: str) -> dict[str, Any]:
    """The same with fewer keys that must be there."""
    return {**schema, "required": list(required)}


def _record(kind: type, **properties: Any) -> dict[str, Any]:
    """A dataclass as `dataclasses.asdict` and json write it; some `properties` in another way."""
    hints = typing.get_type_hints(kind)
    fields = {field.name: _schema(hints[field.name]) for field in dataclasses.fields(kind)}
    return _object(fields | properties)


def _object(
    properties: dict[str, Any], *, may: Mapping[str, dict[str, Any]] | None = None
) -> dict[str, Any]:
    """With these properties, and perhaps those that it `may` have."""
    required = list(properties)
    return {"type": "object", "properties": {**properties, **(may or {})}, "required": required}


def _or_null(schema: dict[str, Any]) -> dict[str, Any]:
    return {"anyOf": [schema, {"type": "null"}]}


_SIMPLE = {
    str: {"type": "string"},
    Path: {"type": "string"},
    bool: {"type": "boolean"},
    int: {"type": "integer"},
    float: {"type": "number"},
    type(None): {"type": "null"},
    Any: {},
}


def _schema(kind: Any) -> dict[str, Any]:
    """Of a type that a field has."""
    if kind in _SIMPLE:
        return _SIMPLE[kind]
    if dataclasses.is_dataclass(kind):
        return _record(typing.cast(type, kind))
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        return {"anyOf": [_schema(one) for one in inner]}
    if origin is not None and issubclass(origin, Mapping):
        return {"type": "object", "additionalProperties": _schema(inner[1])}
    if origin is tuple and inner[-1] is not Ellipsis:
        return {"type": "array", "prefixItems": [_schema(one) for one in inner]}
    if origin in (tuple, list, frozenset) or issubclass(origin, Sequence):
        return {"type": "array", "items": _schema(inner[0])}
    raise TypeError(f"no schema for {kind}")


def main(argv: list[str]) -> int:
    """Write or check all pages."""
    from docs.file_schemas import schema_text
    from edgepack.base.schemas import SCHEMA_OF

    check = argv == ["--check"]
    stale = []
    pages = {
        HERE / "cli.md": cli_page(),
        HERE / "api.md": api_page(),
        HERE / "meanings.md": meanings_page(),
        HERE / "edgepack.1": man_page(),
        HERE / "output.schema.json": schema_page(),
        **{FILE_SCHEMAS / file: schema_text(name) for name, file in SCHEMA_OF.items()},
    }
    for file, page in pages.items():
        if not file.exists() or file.read_text() != page:
            stale.append(file.name)
            if not check:
                file.write_text(page)
    if stale and check:
        print(f"out of date: {', '.join(stale)}; run docs/generate.py", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
