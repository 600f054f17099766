"""Examples in the help of each command: a test reads each with the command line's own parser."""

from __future__ import annotations

from collections.abc import Mapping

_PI = "--device pi@192.168.1.20"

EXAMPLES: Mapping[str, tuple[str, ...]] = {
    "init": (
        "edgepack init model.onnx --board rasp3b --image cat.jpg",
        f"edgepack init model.onnx --board rasp4b-64 {_PI} --labels labels.txt",
        "edgepack init model.onnx --preset timm --image cat.jpg --expected tabby",
    ),
    "check": (
        "edgepack check",
        "edgepack check --image cat.jpg --image coffee.jpg",
        "edgepack check --rows measured.csv --target class",
    ),
    "deploy": (
        "edgepack deploy",
        f"edgepack deploy model.onnx --board rasp3b {_PI}",
        f"edgepack deploy {_PI} --dry-run",
    ),
    "run": (
        "edgepack run coffee.jpg",
        f"edgepack run coffee.jpg --name model {_PI}",
        "edgepack run --input tokens.npy --input mask.npy --output scores.npy",
    ),
    "status": (
        "edgepack status",
        f"edgepack status --name model {_PI}",
        "edgepack status --json",
    ),
    "bench": (
        "edgepack bench -n 100 --threads 1 --profile",
        "edgepack bench --compare 6b4d4871738a 0123456789ab",
        "edgepack bench --compare cpu gpu",
    ),
    "inspect": (
        "edgepack inspect model.onnx",
        "edgepack inspect model.onnx --board rasp3b",
        "edgepack inspect model.onnx --shape input=1,3,640,640",
    ),
    "compile": (
        "edgepack compile model.onnx --board rasp3b --out compiled",
        "edgepack compile --explain --out compiled",
        "edgepack compile --precision float16 --board rasp5b --out compiled",
    ),
    "report": (
        "edgepack report",
        "edgepack report check.html bench.html -o all.html",
        "edgepack report build/pages --project models/edgepack.toml",
    ),
    "quantize": (
        "edgepack quantize --images photos",
        "edgepack quantize model.onnx --images photos --judge others --out small.onnx",
        "edgepack quantize --images photos --stage direction",
    ),
    "enroll": (
        "edgepack enroll Anna anna-1.jpg anna-2.jpg",
        "edgepack enroll Ben ben.jpg --project door.toml --gallery people.json",
        "edgepack enroll Ben --remove",
    ),
    "evaluate": (
        "edgepack evaluate --images photos",
        f"edgepack evaluate --images list.csv {_PI}",
        "edgepack evaluate --rows table.csv --target price",
    ),
    "tune": (
        "edgepack tune",
        f"edgepack tune {_PI} --minutes 30",
        "edgepack tune --trials 100 --stage direction",
    ),
    "package": (
        "edgepack package",
        "edgepack package model.onnx --board rasp3b --format deb",
        "edgepack package --sign key --release-version auto",
    ),
    "sdk": (
        "edgepack sdk --board rasp3b --out sdk",
        "edgepack sdk --board rasp4b-64 --out sdk64 --toolchain gnu",
        "edgepack sdk --board rasp3b --out sdk --json",
    ),
    "rollback": (
        "edgepack rollback",
        "edgepack rollback --to 6b4d4871738a",
        f"edgepack rollback --name model {_PI}",
    ),
    "trial": (
        "edgepack trial status",
        "edgepack trial stop",
        f"edgepack trial activate --name model {_PI}",
    ),
    "compare": (
        "edgepack compare",
        "edgepack compare --input input.npy --all",
        "edgepack compare --release 6b4d4871738a",
    ),
    "service": (
        "edgepack service install",
        f"edgepack service status --name model {_PI}",
        "edgepack service remove",
    ),
    "logs": (
        "edgepack logs",
        "edgepack logs -n 200",
        f"edgepack logs -f --name model {_PI}",
    ),
    "repair": (
        "edgepack repair",
        f"edgepack repair --name model {_PI}",
        "edgepack repair --json",
    ),
    "prune": (
        "edgepack prune",
        "edgepack prune --keep 1 --dry-run",
        f"edgepack prune --name model {_PI}",
    ),
    "fleet": (
        "edgepack fleet plan fleet.toml",
        "edgepack fleet deploy fleet.toml model.onnx --canary 2",
        "edgepack fleet status fleet.toml --name model --html fleet.html",
    ),
    "publish": (
        "edgepack publish apt repository --key packages@example.org --phase 5 --add dist/*.deb",
        "edgepack publish oci oci://registry.example/shop/flowers:stable --quadlet units",
        "edgepack publish mender https://hosted.mender.io --add dist/flowers.mender "
        "--token-file token --group shop-floor --phases 5,25,100",
    ),
    "matrix": (
        "edgepack matrix --board rasp3b --board rasp4b-64",
        "edgepack matrix --fleet fleet.toml --limit site=berlin",
        "edgepack matrix doors/edgepack.toml parking/edgepack.toml",
    ),
    "keygen": (
        "edgepack keygen release-key",
        "edgepack keygen release-key --principal releases@example.org",
        "edgepack keygen hardware-key --hardware",
    ),
    "sign": (
        "edgepack sign dist/model-rasp3b-6b4d4871738a --key release-key",
        "edgepack sign dist/model-rasp3b-6b4d4871738a --key release-key.pub",
        "edgepack sign dist/model-rasp3b-6b4d4871738a --key second-key --add",
    ),
    "verify": (
        "edgepack verify dist/model-rasp3b-6b4d4871738a.tar.gz",
        "edgepack verify dist/model-rasp3b-6b4d4871738a --signers allowed_signers",
        "edgepack verify dist/model-rasp3b-6b4d4871738a --json",
    ),
    "trust": (
        "edgepack trust show",
        "edgepack trust set allowed_signers",
        f"edgepack trust show --name model {_PI}",
    ),
    "boards": (
        "edgepack boards",
        "edgepack boards rasp3b",
        "edgepack boards --json",
    ),
    "board": (
        "edgepack board up rasp3b",
        "edgepack board ssh rasp3b -- uname -a",
        "edgepack board down rasp3b",
    ),
    "doctor": (
        "edgepack doctor",
        "edgepack doctor --board rasp4b-64",
        "edgepack doctor --json",
    ),
    "cache": (
        "edgepack cache show",
        "edgepack cache prune --unused-days 30 --dry-run",
        "edgepack cache prune --max-mb 2000",
    ),
    "schema": (
        "edgepack schema edgepack.toml",
        "edgepack schema edgepack.toml --out edgepack.schema.json",
        "edgepack schema fleet.toml --out fleet.schema.json",
    ),
    "completion": (
        "edgepack completion bash > ~/.local/share/bash-completion/completions/edgepack",
        "edgepack completion fish > ~/.config/fish/completions/edgepack.fish",
        "edgepack completion zsh > _edgepack",
    ),
}
