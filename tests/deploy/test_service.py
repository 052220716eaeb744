"""The tutorial's web service answers over HTTP as the estimator does."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import numpy as np
import pytest

from sparsebnn.deploy import export
from sparsebnn.estimators import SparseBNNClassifier

PAGE = Path(__file__).resolve().parents[2] / "docs" / "tutorials" / "production.md"


def test_the_service_answers(tmp_path: Path) -> None:
    for package in ("fastapi", "uvicorn", "onnxruntime"):
        pytest.importorskip(package)
    pandas = pytest.importorskip("pandas")
    (code,) = [c for c in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL) if "FastAPI()" in c]
    random = np.random.RandomState(0)
    frame = pandas.DataFrame({"size": random.randn(60), "color": random.choice(["red", "blue"], 60)})
    model = SparseBNNClassifier(epochs=5, replicates=2, random_state=0).fit(frame, frame["size"] > 0)
    export(model, tmp_path / "iris.onnx")
    (tmp_path / "service.py").write_text(code)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "uvicorn", "service:app", "--port", str(port), "--log-level", "error"]
    server = subprocess.Popen(command, cwd=tmp_path)
    try:
        rows = frame.head(3).to_dict("records")
        del rows[2]["size"]
        request = urllib.request.Request(
            f"http://127.0.0.1:{port}/predict",
            json.dumps(rows).encode(),
            {"Content-Type": "application/json"},
        )
        answer = None
        until = time.monotonic() + 60
        while answer is None and server.poll() is None and time.monotonic() < until:
            try:
                answer = json.loads(urllib.request.urlopen(request, timeout=10).read())
            except (urllib.error.URLError, ConnectionError):
                time.sleep(0.2)
        assert answer is not None
    finally:
        server.terminate()
        server.wait(10)
    frame.loc[2, "size"] = np.nan
    want = model.predict_proba(frame.head(3))
    np.testing.assert_allclose([row["probabilities"] for row in answer], want, atol=1e-5)
    assert [row["label"] for row in answer] == model.predict(frame.head(3)).tolist()
