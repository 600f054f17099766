"""`models:/` and `runs:/`: a real `mlflow server` on this machine, where mlflow is installed."""

from __future__ import annotations

import os
import sys
import time
import urllib.request
from pathlib import Path
from subprocess import Popen

import pytest

from edgepack.model.errors import SourceError
from edgepack.model.sources import ModelSource, local_model, source_of
from tests.boards import own_cache
from tests.support import free_port

# Written by mlflow.onnx.log_model, with a signature of photos of 96 x 128.
LOGGED = Path(__file__).parents[1] / "fixtures" / "mlflow"


@pytest.mark.slow
def test_a_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A version by number and alias, and a run's, from a real server."""
    pytest.importorskip("mlflow.server", reason="pip install mlflow")
    import mlflow

    port = free_port()
    address = f"http://127.0.0.1:{port}"
    words = [sys.executable, "-m", "mlflow", "server", "--port", str(port), "--workers", "1",
             "--backend-store-uri", f"sqlite:///{tmp_path}/db", "--artifacts-destination",
             str(tmp_path / "kept")]  # fmt: skip
    path = os.pathsep.join(filter(None, sys.path))
    environment = {**os.environ, "PYTHONPATH": path}
    with own_cache(), Popen(words, env=environment, start_new_session=True) as server:
        try:
            for _ in range(600):
                try:
                    urllib.request.urlopen(f"{address}/health", timeout=1).close()
                    break
                except OSError:
                    time.sleep(0.2)
            monkeypatch.setenv("MLFLOW_TRACKING_URI", address)
            mlflow.set_tracking_uri(address)
            client = mlflow.MlflowClient()
            with mlflow.start_run() as run:
                mlflow.log_artifacts(str(LOGGED), "model")
            client.create_registered_model("shelf")
            place = f"{run.info.artifact_uri}/model"
            client.create_model_version("shelf", place, run_id=run.info.run_id)
            client.set_registered_model_alias("shelf", "champion", "1")
            want = ModelSource(
                uri="models:/shelf/1", name="shelf", version="1", run_id=run.info.run_id
            )
            for name in ("models:/shelf/1", "models:/shelf@champion"):
                assert source_of(local_model(name)) == want
            model = local_model(f"runs:/{run.info.run_id}/model", beside=tmp_path)
            assert model == tmp_path / "model" / "model.onnx"
            for name in ("models:/shelf/2", "models:/shelf@none", f"runs:/{'0' * 32}/model"):
                with pytest.raises(SourceError, match="not there"):
                    local_model(name)
        finally:
            os.killpg(server.pid, 15)
