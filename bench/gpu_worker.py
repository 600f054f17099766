"""Runs what `bench.gpu` packed, on a machine with a GPU: `python3 FOLDER/run.py`.

This file travels. It needs Python 3.10, the GPU's driver, and no package; PyTorch, where it is
there, does the same work beside edgepack for `--torch`.
"""

from __future__ import annotations

import argparse
import ctypes
import hashlib
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent


# Of one start of the app, seconds.
LIMIT_S = 120.0


def run_case(
    case: dict[str, Any], *, runs: int, profile: bool = False, limit_s: float = LIMIT_S
) -> dict[str, Any]:
    """What one of plan.json's cases takes: `ms` (the median), `error` (the largest difference over
    the largest value expected), `same` (whether two runs gave equal bits); or why it `failed`."""
    folder = HERE / case["folder"]
    words = [str(HERE / "edgepack-run"), "--bundle", str(folder)]
    for name in case["inputs"]:
        words += ["--input", str(folder / name)]
    checked = list(words)
    for name in case["expected"]:
        checked += ["--expected", str(folder / name)]
    timing = ["--bench", str(runs), "--warmup", str(max(1, runs // 10)), "--affinity", "none"]
    # Errors are reported, not judged.
    done = _app([*checked, *timing, "--tolerance", "1e9", "--json"], limit_s)
    if isinstance(done, str):
        return {"failed": done}
    seen = set()
    for turn in range(2):
        outputs = [folder / f"made{turn}-{index}" for index in range(len(case["expected"]))]
        kept = [word for path in outputs for word in ("--output", str(path))]
        again = _app([*words, *kept, "--json"], limit_s)
        if isinstance(again, str):
            return {"failed": again}
        seen.add(hashlib.sha256(b"".join(path.read_bytes() for path in outputs)).hexdigest())
    expected = done["expected"]
    if profile:
        words += [*timing, "--profile"]
        subprocess.run(words, check=False)
    return {
        "ms": done["bench"]["p50_ms"],
        "error": expected["max_abs_error"] / max(expected["max_abs_reference"], 1e-30),
        "same": len(seen) == 1,
    }


def _app(words: Sequence[str], limit_s: float) -> dict[str, Any] | str:
    """The app's report, or the last line of its error."""
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=limit_s, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    if done.returncode:
        said = done.stderr.strip().splitlines()
        return said[0] if said else f"exit code {done.returncode}"
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def table(rows: Sequence[dict[str, Any]]) -> str:
    """The rows as docs/performance.md has them."""
    lines = [
        "| model | precision | edgepack ms | PyTorch ms | ratio | error | same bits |",
        "|---|---|---:|---:|---:|---:|---|",
    ]
    for row in rows:
        names = f"| {row['model']} | {row['precision']} |"
        if "failed" in row:
            lines.append(f"{names} {row['failed'].replace('|', '/')} | - | - | - | - |")
            continue
        peer = row.get("torch_ms")
        ratio = f"{row['ms'] / peer:.2f}" if peer else "-"
        shown = f"{peer:.3f}" if peer else "-"
        same = "yes" if row["same"] else "no"
        lines.append(f"{names} {row['ms']:.3f} | {shown} | {ratio} | {row['error']:.0e} | {same} |")
    return "\n".join(lines)


def gpu_name() -> str:
    """The GPU and its driver's version of CUDA, or why that is not known."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        return f"no NVIDIA driver: {error}"
    device, version, name = ctypes.c_int(), ctypes.c_int(), ctypes.create_string_buffer(256)
    if driver.cuInit(0) or driver.cuDeviceGet(ctypes.byref(device), 0):
        return "no NVIDIA GPU"
    driver.cuDeviceGetName(name, 255, device)
    driver.cuDriverGetVersion(ctypes.byref(version))
    return (
        f"{name.value.decode()}, driver of CUDA {version.value // 1000}"
        f".{version.value % 1000 // 10}"
    )


def main(argv: Sequence[str]) -> int:
    """Runs all cases, as far as the time allows; 1 if one of them failed."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--runs", type=int, default=200, help="of each model; default: 200")
    parser.add_argument("--seconds", type=float, default=540.0, help="in all; default: 540")
    parser.add_argument("--limit", type=float, default=LIMIT_S, help="of each start; default: 120")
    parser.add_argument("--torch", action="store_true", help="PyTorch beside it, as a CUDA graph")
    parser.add_argument("--compile", action="store_true", help="PyTorch's compiler, too")
    parser.add_argument("--profile", nargs="*", default=[], help="print these models' layers")
    parser.add_argument("--only", nargs="*", default=[], help="these models")
    args = parser.parse_args(argv)
    end = time.monotonic() + args.seconds
    plan = json.loads((HERE / "plan.json").read_text(encoding="utf-8"))
    print(f"{gpu_name()}; kernels for {plan['for']}", flush=True)
    (HERE / "edgepack-run").chmod(0o700)
    rows = []
    for case in plan["cases"]:
        if args.only and case["model"] not in args.only:
            continue
        row = {"model": case["model"], "precision": case["precision"]}
        if time.monotonic() > end:
            row["failed"] = "no time was left"
        elif case["folder"]:
            profile = case["model"] in args.profile
            row.update(run_case(case, runs=args.runs, profile=profile, limit_s=args.limit))
        else:
            row["failed"] = "not packed"
        print(json.dumps(row), file=sys.stderr, flush=True)
        rows.append(row)
    if args.torch:
        for row in rows:
            if time.monotonic() < end:
                row["torch_ms"] = _torch(row["model"], row["precision"], args.compile)
                print(json.dumps(row), file=sys.stderr, flush=True)
    print(table(rows))
    return int(any("failed" in row for row in rows))


def _torch(model: str, precision: str, compiled: bool) -> float | None:
    """PyTorch's milliseconds; None where it is not there or cannot do it. In a process of its own:
    what breaks a GPU's context breaks all that follows in it."""
    words = [sys.executable, str(HERE / "peer.py"), str(HERE / f"{model}.nodes.json"), precision]
    words += ["--compile"] if compiled else []
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        print("\n".join(done.stderr.splitlines()[-3:]), file=sys.stderr)
        return None
    print(done.stdout, file=sys.stderr)
    return float(min(json.loads(done.stdout).values()))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
