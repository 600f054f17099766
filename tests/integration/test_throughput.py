"""How fast a large file gets to a device, beside scp: printed, by `./dev slow -s`.

Both talk to the same sshd on this machine, in turn. The weights are random, so that nothing
is gained by packing them. A deploy also flushes, hashes what arrived and runs the test there.
"""

from __future__ import annotations

import statistics
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest

from edgepack.bundle.manifest import PARAMS
from edgepack.deploy.deploy import deploy_bundle
from edgepack.device import Address, SshOptions
from edgepack.device.ssh import SshDevice
from tests.fake_app import fake_bundle
from tests.integration.sshd_server import Sshd
from tests.support import require_tool

SIZE = 100_000_000
ROUNDS = 5


@pytest.mark.slow
def test_a_hundred_megabytes_beside_scp(sshd: Sshd, tmp_path: Path) -> None:
    scp = require_tool("scp")
    known = tmp_path / "known_hosts"
    known.write_text(sshd.known_hosts_line + "\n")
    bundle = fake_bundle(tmp_path / "bundle", weights=np.random.default_rng(1).bytes(SIZE))
    device = SshDevice(
        Address(host="127.0.0.1", port=sshd.port),
        options=SshOptions(
            use_config=False,
            identity=sshd.key,
            identities_only=True,
            host_keys=(sshd.known_hosts_line,),
        ),
    )
    rows: list[tuple[float, float, float]] = []
    try:
        for number in range(ROUNDS):
            copy = tmp_path / f"copy{number}"
            start = time.monotonic()
            subprocess.run(
                [
                    *(scp, "-q", "-P", str(sshd.port), "-i", sshd.key, "-o", "BatchMode=yes"),
                    *("-o", f"UserKnownHostsFile={known}", "-o", "IdentitiesOnly=yes"),
                    *(bundle.file(PARAMS), f"127.0.0.1:{copy}"),
                ],
                check=True,
            )
            scp_s = time.monotonic() - start
            report = deploy_bundle(bundle, device, f"{tmp_path}/root{number}")
            sent = tmp_path / f"root{number}/current" / PARAMS
            assert copy.read_bytes() == sent.read_bytes() == bundle.file(PARAMS).read_bytes()
            assert report.model_bytes_sent >= SIZE
            rows.append((scp_s, report.seconds["send"], sum(report.seconds.values())))
            print(
                f"round {number}: scp {SIZE / scp_s / 1e6:.0f} MB/s, transfer "
                f"{SIZE / rows[-1][1] / 1e6:.0f} MB/s, whole deploy "
                f"{SIZE / rows[-1][2] / 1e6:.0f} MB/s; seconds {report.seconds}"
            )
    finally:
        device.close()
    send = statistics.median(scp_s / send_s for scp_s, send_s, _ in rows)
    whole = statistics.median(scp_s / all_s for scp_s, _, all_s in rows)
    print(f"median of scp's throughput: transfer {send:.0%}, whole deploy {whole:.0%}")
