"""The error of a kernel that is told to read or write beside a tensor."""

from __future__ import annotations

from dataclasses import dataclass

import tvm
from tvm import tirx

# The error that kernels raise for it. The runtime makes a sentence of the fields of its message
# (cpp_runtime/app/src/session.cc).
KIND = "IndexError"


@dataclass(frozen=True)
class Outside:
    """What a kernel says of a position outside of `low` to `high`.

    `what` says which input of which node it is, or nothing. The position is read from argument
    number `source`, -1 if it is computed; argument number `where` begins with its place there, -1
    if that is not known.
    """

    what: str
    low: int
    high: int
    source: int = -1
    where: int = -1

    def text(self) -> str:
        return f"{self.what}|{self.low}|{self.high}|{self.source}|{self.where}"


def fail_unless(condition: tirx.Expr, outside: Outside) -> tirx.Stmt:
    """A statement that ends the kernel unless a condition holds."""
    kind, text = (tvm.ir.StringImm(text) for text in (KIND, outside.text()))
    return tirx.AssertStmt(condition, kind, [text])
