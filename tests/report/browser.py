"""Headless Chromium over its debugging pipe, with the standard library alone.

Chromium reads commands on file descriptor 3 and answers on 4, each message ended by a zero byte
(``--remote-debugging-pipe``); no port is opened and nothing is downloaded.
"""

from __future__ import annotations

import json
import os
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
WAIT_SECONDS = 60
# Becomes the browser with the two pipes as descriptors 3 and 4; copies first, in case they overlap.
PASS_ON = """
import fcntl, os, sys
copies = [fcntl.fcntl(int(fd), fcntl.F_DUPFD, 10) for fd in sys.argv[1:3]]
os.dup2(copies[0], 3)
os.dup2(copies[1], 4)
os.execv(sys.argv[3], sys.argv[3:])
"""
FLAGS = ["--headless=new", "--no-sandbox", "--no-first-run"]
FLAGS += [f"--disable-{what}" for what in ("gpu", "dev-shm-usage", "extensions", "background-networking")]


def find():
    """The browser's path, or None. ``SPARSEBNN_BROWSER`` names another one."""
    named = os.environ.get("SPARSEBNN_BROWSER")
    return named or next((path for name in NAMES if (path := shutil.which(name))), None)


class Browser:
    """One browser, one page; ``problems`` and ``requests`` gather what the page did since it was opened."""

    def __init__(self, path, profile):
        their_in, self._out = os.pipe()
        self._in, their_out = os.pipe()
        words = [path, *FLAGS, "--remote-debugging-pipe", f"--user-data-dir={profile}"]
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", PASS_ON, str(their_in), str(their_out), *words],
            pass_fds=(their_in, their_out),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(their_in)
        os.close(their_out)
        self._buffer, self._count, self._session = b"", 0, None
        self.problems, self.requests, self._events = [], [], []
        try:
            target = self.send("Target.createTarget", url="about:blank")["targetId"]
            self._session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
            for domain in ("Page", "Runtime", "Log", "Network"):
                self.send(f"{domain}.enable")
        except BaseException:
            self.close()
            raise

    def close(self):
        try:
            self._session = None
            self.send("Browser.close")
            self._process.wait(timeout=10)
        except Exception:
            self._process.kill()
            self._process.wait()
        os.close(self._in)
        os.close(self._out)

    def _receive(self, until):
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._in], [], [], max(0.0, until - time.monotonic()))
            more = os.read(self._in, 1 << 20) if ready else b""
            if not more:
                raise TimeoutError("Chromium did not answer" if not ready else "Chromium has gone")
            self._buffer += more
        raw, self._buffer = self._buffer.split(b"\0", 1)
        message = json.loads(raw)
        if "method" in message:
            self._note(message["method"], message["params"])
        return message

    def _note(self, method, params):
        self._events.append(method)
        if method == "Runtime.exceptionThrown":
            self.problems.append(params["exceptionDetails"].get("exception", params["exceptionDetails"]))
        elif method == "Runtime.consoleAPICalled":
            self.problems.append((params["type"], params["args"]))
        elif method == "Log.entryAdded":
            self.problems.append(params["entry"])
        elif method == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])

    def send(self, method, **params):
        """One command; its result."""
        self._count += 1
        message = {"id": self._count, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        until = time.monotonic() + WAIT_SECONDS
        while (answer := self._receive(until)).get("id") != self._count:
            pass
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error']}")
        return answer["result"]

    def open(self, path, width=1200, height=900, dark=False, media=""):
        """Load a file in a window of that size; forget what earlier pages did."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self.send("Emulation.setDeviceMetricsOverride", **size)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.send("Emulation.setEmulatedMedia", media=media, features=[scheme])
        self.problems, self.requests, self._events = [], [], []
        self.send("Page.navigate", url=Path(path).resolve().as_uri())
        until = time.monotonic() + WAIT_SECONDS
        while "Page.loadEventFired" not in self._events:
            self._receive(until)

    def run(self, script):
        """The value of an expression, evaluated in the page."""
        answer = self.send("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(answer["exceptionDetails"])
        return answer["result"].get("value")

    def move_to(self, selector, press=False):
        """Put the pointer on an element's middle, as a hand would; press it too if asked."""
        box = self.run(
            f"(() => {{ const e = document.querySelector({json.dumps(selector)});"
            "e.scrollIntoView({block: 'center', inline: 'center'}); const b = e.getBoundingClientRect();"
            "return [b.x + b.width / 2, b.y + b.height / 2]; })()"
        )
        place = {"x": box[0], "y": box[1]}
        self.send("Input.dispatchMouseEvent", type="mouseMoved", **place)
        if press:
            for kind in ("mousePressed", "mouseReleased"):
                self.send("Input.dispatchMouseEvent", type=kind, button="left", clickCount=1, **place)

    def key(self, name, code):
        for kind in ("rawKeyDown", "keyUp"):
            self.send("Input.dispatchKeyEvent", type=kind, key=name, code=name, windowsVirtualKeyCode=code)
