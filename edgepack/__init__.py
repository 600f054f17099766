"""edgepack: put a trained ONNX or TFLite model on an ARM board, and verify it there.

    import edgepack

    edgepack.init("model.onnx", board="rasp3b", device="pi@192.168.1.20", image="cat.jpg")
    with edgepack.deploy(project="edgepack.toml") as deployed:
        print(deployed.run("cat.jpg").top)

The functions do the same as the commands of these names; `help(edgepack.deploy)` describes one:

    init(model)            write a project file for a model, from the model's file
    check(model, images)   run the reference (onnxruntime) on photos, on this machine
    deploy(model)          compile, pack, upload, activate and test; returns a `Deployment`
    connect(device)        return the `Deployment` of a release that is on the device
    package(model)         make a bundle, and a tarball, package or image of it
    publish_apt(folder)    and _oci, _mender, _hawkbit: give packages to what updates devices
    evaluate(model, images)  measure accuracy on labelled photos or rows, here and on the device
    quantize(model, images)  convert a float model to 8-bit integers
    compare(deployed)      compare each layer on the device with the reference
    tune(model)            find faster kernels for a model, timed on the device

A `Deployment` has run, session, bench, profile, status and rollback; for trials trial_status,
trial_pictures, stop_trial, activate_trial and resume_trial. Errors are subclasses of
`EdgepackError`: `message` says what is wrong, and `hint` what to do.

A program that does something between the steps of a deploy can call each step:

    project = load_project("edgepack.toml")
    job = make_job(project)
    bundle = package_job(job, "dist")
    device = open_device("pi@192.168.1.20", job.board)
    report = deploy_bundle(bundle, device, "edgepack/flowers")

All names are in docs/reference/api.md. Each is imported at its first use, so that
`import edgepack` stays quick.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from edgepack.base.version import VERSION

__version__ = VERSION
# The function `edgepack.deploy` has the name of the package that does its last step. That is
# imported by now, so no import of something in it puts it in the function's place.
importlib.import_module("edgepack.deploy")
del globals()["deploy"]

if TYPE_CHECKING:
    from edgepack.api import (
        PackedBundle,
        check,
        compare,
        evaluate,
        init,
        package,
        publish_apt,
        publish_hawkbit,
        publish_mender,
        publish_oci,
        quantize,
        stop_hawkbit,
        stop_mender,
        tune,
        watch_fleet,
    )
    from edgepack.base.errors import EdgepackError
    from edgepack.base.paths import outside_allowed
    from edgepack.base.progress import Progress
    from edgepack.boards import Board, get_board, load_boards
    from edgepack.bundle.bundle import Bundle, open_bundle, write_tarball
    from edgepack.compiler import CompiledModel, compile_model
    from edgepack.deploy.answers import Status, Switched
    from edgepack.deploy.app_answers import AppAnswer, Bench, Class, Profile
    from edgepack.deploy.deploy import Report, deploy_bundle, preview
    from edgepack.deploy.options import DeployOptions, TrialRules
    from edgepack.deploy.remote_app import RunRequest, run_on_device
    from edgepack.deploy.trial import TrialStatus
    from edgepack.device import Device, SshOptions, open_device
    from edgepack.device.facts import DeviceFacts
    from edgepack.fleet import Fleet, load_fleet, make_plan, roll_out
    from edgepack.flow.deployment import Deployment, Outputs, connect, deploy
    from edgepack.flow.job import Job, compile_job, make_job, package_job
    from edgepack.flow.project import Project, load_project
    from edgepack.flow.session import Session
    from edgepack.frontend.inspect import ModelInfo, inspect_model
    from edgepack.frontend.load import load_model
    from edgepack.model import ModelSpec
    from edgepack.native.app import RuntimeBuild, build_runtime
    from edgepack.native.toolchain import Toolchain, select
    from edgepack.preprocess.spec import PreprocessSpec

_HOME = {
    "api": (
        "PackedBundle",
        "check",
        "compare",
        "evaluate",
        "init",
        "package",
        "publish_apt",
        "publish_hawkbit",
        "publish_mender",
        "publish_oci",
        "quantize",
        "stop_hawkbit",
        "stop_mender",
        "tune",
        "watch_fleet",
    ),
    "base.errors": ("EdgepackError",),
    "base.paths": ("outside_allowed",),
    "base.progress": ("Progress",),
    "boards": ("Board", "get_board", "load_boards"),
    "bundle.bundle": ("Bundle", "open_bundle", "write_tarball"),
    "compiler": ("CompiledModel", "compile_model"),
    "deploy.answers": ("Status", "Switched"),
    "deploy.app_answers": ("AppAnswer", "Bench", "Class", "Profile"),
    "deploy.deploy": ("Report", "deploy_bundle", "preview"),
    "deploy.options": ("DeployOptions", "TrialRules"),
    "deploy.remote_app": ("RunRequest", "run_on_device"),
    "deploy.trial": ("TrialStatus",),
    "device": ("Device", "SshOptions", "open_device"),
    "device.facts": ("DeviceFacts",),
    "fleet": ("Fleet", "load_fleet", "make_plan", "roll_out"),
    "flow.deployment": ("Deployment", "Outputs", "connect", "deploy"),
    "flow.job": ("Job", "compile_job", "make_job", "package_job"),
    "flow.project": ("Project", "load_project"),
    "flow.session": ("Session",),
    "frontend.inspect": ("ModelInfo", "inspect_model"),
    "frontend.load": ("load_model",),
    "model": ("ModelSpec",),
    "native.app": ("RuntimeBuild", "build_runtime"),
    "native.toolchain": ("Toolchain", "select"),
    "preprocess.spec": ("PreprocessSpec",),
}
_MODULE_OF = {name: module for module, names in _HOME.items() for name in names}

__all__ = [  # noqa: RUF022 - in the order of use
    "init",
    "check",
    "deploy",
    "connect",
    "Deployment",
    "Outputs",
    "Session",
    "AppAnswer",
    "Class",
    "Bench",
    "Profile",
    "Status",
    "Switched",
    "TrialStatus",
    "package",
    "PackedBundle",
    "publish_apt",
    "publish_oci",
    "publish_mender",
    "stop_mender",
    "publish_hawkbit",
    "stop_hawkbit",
    "evaluate",
    "quantize",
    "compare",
    "tune",
    "Progress",
    "load_project",
    "outside_allowed",
    "Project",
    "load_boards",
    "get_board",
    "Board",
    "select",
    "Toolchain",
    "inspect_model",
    "ModelInfo",
    "load_model",
    "ModelSpec",
    "make_job",
    "Job",
    "compile_job",
    "compile_model",
    "CompiledModel",
    "build_runtime",
    "RuntimeBuild",
    "PreprocessSpec",
    "package_job",
    "Bundle",
    "open_bundle",
    "write_tarball",
    "open_device",
    "Device",
    "SshOptions",
    "DeviceFacts",
    "preview",
    "deploy_bundle",
    "DeployOptions",
    "TrialRules",
    "Report",
    "run_on_device",
    "RunRequest",
    "load_fleet",
    "Fleet",
    "make_plan",
    "roll_out",
    "watch_fleet",
    "EdgepackError",
]
NAMES = tuple(__all__)
"""What is public, in the order of use."""
# For type checkers only: help(edgepack) would have the whole text of each, a thousand lines.
del __all__


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'edgepack' has no attribute {name!r}")
    return getattr(importlib.import_module(f"edgepack.{_MODULE_OF[name]}"), name)


def __dir__() -> list[str]:
    return sorted(NAMES)
