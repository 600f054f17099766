"""edgepack/cpus.json: `python -m tests.llvm_cpus` writes what TVM's LLVM says now."""

from __future__ import annotations

import json
from pathlib import Path

import edgepack.cpus
from edgepack.compiler.backend import llvm

FILE = Path(edgepack.cpus.__file__).with_name("cpus.json")


def text() -> str:
    """The file's content: a line per CPU, so that a newer LLVM makes a readable diff."""
    triples = [
        f"{json.dumps(triple)}: {{\n"
        + ",\n".join(
            f"{json.dumps(cpu)}: {json.dumps(' '.join(sorted(llvm.cpu_features(triple, cpu))))}"
            for cpu in sorted(llvm.cpu_names(triple))
        )
        + "\n}"
        for triple in ("aarch64-linux-gnu", "armv7l-linux-gnueabihf", "x86_64-linux-gnu")
    ]
    return "{\n" + ",\n".join(triples) + "\n}\n"


if __name__ == "__main__":
    FILE.write_text(text(), encoding="utf-8")
