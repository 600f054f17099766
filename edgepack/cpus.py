"""What LLVM knows of CPUs: their names and features, without loading LLVM.

`cpus.json` is what the pinned TVM's LLVM says; `python -m tests.llvm_cpus` writes it again.
"""

from __future__ import annotations

import functools
import json
from pathlib import Path


@functools.cache
def _table() -> dict[str, dict[str, str]]:
    """LLVM triple -> CPU -> its features, separated by spaces."""
    table: dict[str, dict[str, str]] = json.loads(
        Path(__file__).with_name("cpus.json").read_text(encoding="utf-8")
    )
    return table


def cpu_names(llvm_triple: str) -> frozenset[str]:
    """CPU names for a triple such as `armv7l-linux-gnueabihf`."""
    return frozenset(_table()[llvm_triple])


def cpu_features(llvm_triple: str, cpu: str) -> frozenset[str]:
    """Features, without sign (`neon`, `vfp4`), that LLVM gives `cpu` by default."""
    return frozenset(_table()[llvm_triple][cpu].split())


@functools.cache
def feature_names(llvm_triple: str) -> frozenset[str]:
    """Features that any CPU of a triple has."""
    return frozenset(
        name for features in _table()[llvm_triple].values() for name in features.split()
    )
