"""`edgepack compile`: a model's three artifacts for one board."""

from __future__ import annotations

import argparse
import shutil
from dataclasses import asdict
from pathlib import Path

from edgepack.base.errors import UsageError
from edgepack.base.paths import atomic_dir
from edgepack.base.text import megabytes
from edgepack.boards import Board
from edgepack.cli.console import Console, table
from edgepack.cli.options import add_job, check_writable, of_memory, project_of
from edgepack.cli.pages import add_html, check_html, save
from edgepack.cli.pages.compile import compile_page
from edgepack.compiler import CompiledModel
from edgepack.frontend.precision import LEAST_WINOGRAD_DB


def add(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    add_job(parser)
    parser.add_argument(
        "-o",
        "--out",
        type=Path,
        metavar="DIR",
        help="output folder (default: build/<name>-<board>)",
    )
    parser.add_argument(
        "--explain",
        action="store_true",
        help="print each kernel call with its rule, tile, MACs and cycles",
    )
    add_html(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace, console: Console) -> int:
    """Write model.so, graph.json and params.bin."""
    from edgepack.flow.doctor import cost_model_gap
    from edgepack.flow.job import choose_tuned_for, compile_job, cpu_job, make_job

    job = make_job(project_of(args))
    out: Path = args.out or Path("build") / f"{job.project.name}-{job.board.name}"
    if out.exists() and not (out.is_dir() and _is_ours(out)):
        raise UsageError(f"will not replace {out}: it is not a folder of compiled files")
    check_writable(out.parent, "--out")
    check_html(args)
    compiled = compile_job(job, progress=console)
    other = cpu_job(job)
    on_cpu = None if other is None else compile_job(other, progress=console)
    with atomic_dir(out) as work:
        for file in compiled.files:
            shutil.copyfile(file, work / file.name)
        if on_cpu is not None:
            (work / "cpu").mkdir()
            for file in (on_cpu.library, on_cpu.graph, on_cpu.params):
                shutil.copyfile(file, work / "cpu" / file.name)
    title = f"{job.project.name} for {job.board.name}"
    save(args, console, compile_page(compiled, title, job.board))
    tuned = choose_tuned_for(job, compiled).choices
    gap = cost_model_gap(job.board) if args.explain else None
    summary = f"{out}: for {job.board.name} ({job.board.cpu}), {memory(compiled, job.board)}"
    if tuned:
        summary += f"; {len(tuned)} {'kernel' if len(tuned) == 1 else 'kernels'} as tuned"
    if compiled.floats:
        summary += f"; {len(compiled.floats)} quantised layers in float"
    console.data(
        {
            "folder": str(out),
            "board": job.board.name,
            "toolchain": job.toolchain.toolchain.title,
            "toolchain_reason": job.toolchain.reason,
            "arena_bytes": compiled.arena_bytes,
            "states_bytes": compiled.states_bytes,
            "params_bytes": compiled.params_bytes,
            "library_bytes": compiled.library.stat().st_size,
            "model_sha256": compiled.model_sha256,
            "in_float": dict(compiled.floats),
            "tuned": {kernel: str(way) for kernel, way in tuned.items()},
            **(
                {
                    "has_cost_model": gap is None,
                    "layers": [asdict(layer) for layer in compiled.layers],
                }
                if args.explain
                else {}
            ),
        },
        "\n\n".join(filter(None, [explanation(compiled), gap, summary]))
        if args.explain
        else summary,
    )
    return 0


def explanation(compiled: CompiledModel) -> str:
    """A table of all kernel calls; the share is of the cost model's cycles.

    A dash stands for calls that no cost model covers: changes of layout, and what TVM
    lowered.
    """
    total = sum(layer.cycles for layer in compiled.layers)
    rows = [
        (
            layer.layer or "-",
            layer.operator,
            layer.kernel,
            layer.rule,
            "x".join(map(str, layer.shape)),
            layer.dtype,
            layer.tile or "-",
            f"{layer.macs / 1e6:.2f}",
            f"{layer.nbytes / 1e3:.0f}",
            f"{layer.cycles / 1e3:.0f}" if layer.cycles else "-",
            f"{layer.cycles / total:.1%}" if layer.cycles else "-",
        )
        for layer in compiled.layers
    ]
    header = "LAYER,OPERATOR,KERNEL,RULE,SHAPE,TYPE,TILE,M MACS,KB,K CYCLES,SHARE OF CYCLES"
    exact = {layer.layer: layer.exact for layer in compiled.layers if layer.exact}
    notes = [f"{name} stays float32: {why}" for name, why in exact.items()]
    limited = {
        layer.layer: (layer.most_results, layer.limited)
        for layer in compiled.layers
        if layer.most_results is not None
    }
    notes += [_winograd_limit(name, most, why) for name, (most, why) in limited.items()]
    return "\n".join([table(rows, header.split(",")), *notes])


def _winograd_limit(layer: str, most: int, why: str) -> str:
    """Why a layer is not computed by larger tiles."""
    lost = f"it would be less than {LEAST_WINOGRAD_DB:.0f} dB above its error in half precision"
    if most == 0:
        return f"{layer} is computed without Winograd's algorithm: {why or f'with it, {lost}'}"
    why = why or f"with larger ones {lost}"
    return f"{layer} may have Winograd's tiles of {most}x{most} results: {why}"


def memory(compiled: CompiledModel, board: Board) -> str:
    """What a run needs: the weights and one arena for all tensors."""
    states = f" ({megabytes(compiled.states_bytes)} of it states)" if compiled.states_bytes else ""
    return (
        f"weights {megabytes(compiled.params_bytes)}, "
        f"activations {megabytes(compiled.arena_bytes)}{states}, "
        f"kernels {megabytes(compiled.library.stat().st_size)}"
        f"{of_memory(board, compiled.params_bytes + compiled.arena_bytes)}"
    )


def _is_ours(folder: Path) -> bool:
    names = {path.name for path in folder.iterdir()}
    kernels = {"kernels.cl", "kernels.cubin", "kernels.ptx"}
    return names <= {"model.so", "graph.json", "params.bin", "cpu", *kernels}
