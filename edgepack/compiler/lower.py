"""Relax operators -> fused PrimFuncs, called in a straight line."""

from __future__ import annotations

import tvm
from tvm import relax


def lower(module: tvm.IRModule, target: tvm.target.Target) -> tvm.IRModule:
    """Turn every operator into a PrimFunc and fuse those that can share their loops.

    In the result `main` is a dataflow block of `call_tir` and `reshape` only; a
    reshape moves no data.
    """
    transform = relax.transform
    with target:
        return tvm.transform.Sequential(
            [
                transform.LegalizeOps(),
                transform.AnnotateTIROpPattern(),
                transform.FoldConstant(),
                transform.FuseOps(),
                transform.FuseTIR(),
                transform.DeadCodeElimination(),
                transform.RewriteDataflowReshape(),
            ]
        )(module)
