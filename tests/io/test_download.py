"""Downloads against a local server: good, resumed, corrupted, truncated, missing, unreachable."""

from __future__ import annotations

import gzip
import hashlib
import http.server
import io
import socket
import sys
import threading
import tracemalloc

import numpy as np
import pytest
import torch

from sparsebnn import data
from sparsebnn.io.data import catalogue, download
from sparsebnn.io.data.files import ARRAYS, IDX_FILES, DataError, idx_bytes


def small_arrays():
    generator = np.random.default_rng(0)
    shapes = {"x_train": (30, 40, 50), "y_train": (30,), "x_test": (7, 40, 50), "y_test": (7,)}
    return {name: generator.integers(0, 10, shape, dtype=np.uint8) for name, shape in shapes.items()}


class Server(http.server.ThreadingHTTPServer):
    """Serves the files of a mapping; ``trouble`` says what to do with the next requests for a name."""

    daemon_threads = True

    def __init__(self, files):
        self.files, self.trouble, self.asked = files, {}, []
        super().__init__(("127.0.0.1", 0), Handler)

    def handle_error(self, *_): ...  # a client that hangs up

    @property
    def home(self):
        return f"http://127.0.0.1:{self.server_port}/"


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *words): ...

    def do_GET(self):
        name = self.path.lstrip("/")
        asked = self.headers.get("Range")
        self.server.asked.append((name, asked))
        content, trouble = self.server.files[name], self.server.trouble.get(name)
        if trouble == "404":
            self.send_error(404)
            return
        start = 0
        if asked and trouble != "ignores ranges":
            start = int(asked.removeprefix("bytes=").removesuffix("-"))
            if start >= len(content):
                self.send_error(416)
                return
        body = content[start:]
        if trouble == "corrupted":
            body = body[:40] + bytes([body[40] ^ 1]) + body[41:]
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[: len(body) // 2] if trouble == "truncated" else body)
        self.close_connection = True


@pytest.fixture
def server(monkeypatch, tmp_path):
    """A local home of a small 'mnist', with its checksums in the catalogue; the cache is a fresh folder."""
    arrays = small_arrays()
    files = {f"{IDX_FILES[name]}.gz": gzip.compress(idx_bytes(arrays[name])) for name in ARRAYS}
    running = Server(files)
    thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    sums = {name: hashlib.sha256(idx_bytes(arrays[name])).hexdigest() for name in ARRAYS}
    entry = catalogue.Entry("MNIST", tuple("0123456789"), sums, (running.home,))
    monkeypatch.setitem(catalogue.CATALOGUE, "mnist", entry)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("SPARSEBNN_DATA", raising=False)
    running.arrays = arrays
    running.cache = tmp_path / "cache" / "sparsebnn" / "mnist"
    yield running
    running.shutdown()
    running.server_close()
    thread.join()


FIRST = "train-images-idx3-ubyte.gz"


def failure(kind=DataError):
    with pytest.raises(kind) as error:
        data.load("mnist")
    return str(error.value)


def cached(server):
    return sorted(path.name for path in server.cache.glob("*")) if server.cache.exists() else []


def test_a_good_download_is_cached_and_not_asked_for_again(server):
    loaded = data.load("mnist")
    assert torch.equal(loaded.x_train, torch.from_numpy(server.arrays["x_train"].reshape(30, 2000)))
    assert loaded.y_test.tolist() == server.arrays["y_test"].tolist()
    assert loaded.image_shape == (40, 50)
    assert cached(server) == sorted(server.files)
    assert len(server.asked) == 4
    data.load("mnist")
    assert len(server.asked) == 4
    # Only what is missing is asked for.
    (server.cache / FIRST).unlink()
    data.load("mnist")
    assert [name for name, _ in server.asked[4:]] == [FIRST]


@pytest.mark.parametrize("trouble", ["corrupted", "other"])
def test_a_corrupted_file_is_removed(server, trouble):
    """A changed byte, or another file that is whole."""
    good = server.files[FIRST]
    server.trouble[FIRST] = trouble
    if trouble == "other":
        server.files[FIRST] = gzip.compress(idx_bytes(server.arrays["x_train"] + 1))
    assert f"The download from {server.home}{FIRST} is corrupted" in failure()
    assert cached(server) == []
    server.trouble.clear()
    server.files[FIRST] = good
    assert len(data.load("mnist").y_train) == 30


def bomb(mebibytes):
    """Zeros, packed a thousand to one."""
    return gzip.compress(bytes(1 << 20)) * mebibytes


def test_unpacking_stops_where_the_published_file_ends(server):
    """The checksum is of the unpacked content: without a bound a bomb would be unpacked to be checked."""
    second = f"{IDX_FILES['y_train']}.gz"
    server.files[second] = bomb(64)
    tracemalloc.start()
    try:
        assert "is corrupted" in failure()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 16 << 20
    assert cached(server) == [FIRST]


def test_a_download_that_does_not_end_is_stopped(server):
    second = f"{IDX_FILES['y_train']}.gz"
    server.files[second] = bytes(1 << 24)
    received = []
    real = download.Bar.update

    def update(bar, count):
        received.append(count)
        real(bar, count)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(download.Bar, "update", update)
        assert "is corrupted" in failure()
    assert sum(received) < 1 << 20
    assert cached(server) == [FIRST]


def test_a_truncated_file_is_gone_on_with(server):
    server.trouble[FIRST] = "truncated"
    message = failure()
    assert cached(server) == [f"{FIRST}.partial"]
    come = (server.cache / f"{FIRST}.partial").stat().st_size
    assert 8192 <= come <= len(server.files[FIRST]) // 2
    assert f"broke off after {come} bytes" in message
    server.trouble.clear()
    assert len(data.load("mnist").y_train) == 30
    assert (FIRST, f"bytes={come}-") in server.asked
    assert cached(server) == sorted(server.files)


@pytest.mark.parametrize(
    ("beginning", "trouble"),
    [(b"something else", None), (b"something else", "ignores ranges"), (bytes(100_000), None)],
)
def test_a_beginning_that_does_not_fit_is_thrown_away(server, beginning, trouble):
    server.cache.mkdir(parents=True)
    (server.cache / f"{FIRST}.partial").write_bytes(beginning)
    server.trouble[FIRST] = trouble
    assert len(data.load("mnist").y_train) == 30
    assert cached(server) == sorted(server.files)


def closed_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def with_homes(monkeypatch, *homes):
    old = catalogue.CATALOGUE["mnist"]
    new = catalogue.Entry(old.title, old.class_names, old.sha256, homes)
    monkeypatch.setitem(catalogue.CATALOGUE, "mnist", new)


def test_no_network_keeps_what_came_before(server, monkeypatch):
    server.trouble[FIRST] = "404"
    assert f"{server.home}{FIRST} answered 404 Not Found" in failure()
    assert cached(server) == []
    server.trouble[FIRST] = "truncated"
    failure()
    nowhere = f"http://127.0.0.1:{closed_port()}/"
    with_homes(monkeypatch, nowhere)
    assert f"{nowhere}{FIRST} could not be reached" in failure()
    assert cached(server) == [f"{FIRST}.partial"]
    # Another home is tried.
    server.trouble.clear()
    with_homes(monkeypatch, nowhere, server.home)
    assert len(data.load("mnist").y_train) == 30


def test_a_cache_that_cannot_be_written(server):
    server.cache.parent.mkdir(parents=True)
    server.cache.write_text("a file where the folder should be")
    with pytest.raises(DataError) as error:
        download.fetch(catalogue.CATALOGUE["mnist"], server.cache / "deeper")
    assert "could not be written (Not a directory). Free space, or set XDG_CACHE_HOME" in str(error.value)


def test_without_downloading(server, tmp_path, monkeypatch):
    with pytest.raises(DataError, match="MNIST is in none of"):
        data.load("mnist", download=False)
    assert not server.asked
    monkeypatch.setitem(sys.modules, "pooch", None)
    assert "pip install 'sparsebnn[data]'" in failure(ImportError)


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_the_live_line():
    stream = Terminal()
    bar = download.Bar("MNIST x", done=1_000_000, stream=stream)
    bar.total = 3_000_000
    bar.update(1_000_000)
    assert stream.getvalue().endswith("Downloading MNIST x  2.0 MB of 4.0 (50%)")
    bar.reset()
    bar.update(3_000_000)
    assert stream.getvalue().endswith("4.0 MB of 4.0 (100%)")


def test_the_catalogue_is_complete_and_nothing_comes_over_plain_http():
    for entry in catalogue.CATALOGUE.values():
        assert set(entry.sha256) == set(ARRAYS)
        assert all(len(bytes.fromhex(value)) == 32 for value in entry.sha256.values())
        assert all(home.startswith("https://") and home.endswith("/") for home in entry.homes)
