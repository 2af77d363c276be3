"""A real Chromium without a window, driven over a pipe by its own protocol: real clicks, real keys, real pictures."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
FLAGS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--hide-scrollbars",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage",
    "--disable-extensions", "--mute-audio", "--force-color-profile=srgb", "--remote-debugging-pipe",
)  # fmt: skip
LAUNCH = (
    "import os, sys; os.dup2(int(sys.argv[1]), 3); os.dup2(int(sys.argv[2]), 4); os.execv(sys.argv[3], sys.argv[3:])"
)
"""Chromium reads commands from descriptor 3, and answers on 4."""
PATIENCE = 60.0
KEYS = {
    "Enter": (13, "\r"), "Escape": (27, ""), "Tab": (9, ""), "ArrowDown": (40, ""), "ArrowUp": (38, ""),
    "End": (35, ""), "Home": (36, ""), "ArrowRight": (39, ""), "/": (191, "/"), " ": (32, " "), "Backspace": (8, ""),
}  # fmt: skip

WAIT = """(() => {
    const look = () => { try { const found = %s; return found instanceof Node || found } catch { return false } };
    return new Promise((done) => {
        const first = look();
        if (first) return done(first);
        const end = (value) => {
            watch.disconnect(); clearTimeout(timer); removeEventListener('hashchange', see); done(value);
        };
        const see = () => { const found = look(); if (found) end(found); };
        const watch = new MutationObserver(see);
        const timer = setTimeout(() => end(null), %d);
        addEventListener('hashchange', see);
        watch.observe(document, { subtree: true, childList: true, attributes: true, characterData: true });
    });
})()"""


class Browser:
    """One tab."""

    def __init__(self, profile: Path) -> None:
        assert CHROMIUM is not None
        commands, self._commands = os.pipe()
        self._answers, answers = os.pipe()
        self._process = subprocess.Popen(
            [sys.executable, "-c", LAUNCH, str(commands), str(answers), CHROMIUM, *FLAGS, f"--user-data-dir={profile}"],
            pass_fds=(commands, answers),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(commands)
        os.close(answers)
        self._number = 0
        self._buffer = b""
        self._session: str | None = None
        self.said: list[str] = []
        """Errors of the page, and what its policy refused."""
        self.requests: list[str] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: object) -> Any:
        self._number += 1
        message: dict[str, object] = {"id": self._number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        while True:
            found = self._next()
            if found.get("id") == self._number:
                assert "error" not in found, (method, found["error"])
                return found["result"]

    def _next(self) -> Any:
        until = time.monotonic() + PATIENCE + 20
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._answers], [], [], max(0.0, until - time.monotonic()))
            assert ready, "Chromium does not answer"
            data = os.read(self._answers, 1 << 20)
            assert data, "Chromium is gone"
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\0")
        found = json.loads(line)
        self._heard(found.get("method"), found.get("params", {}))
        return found

    def _heard(self, method: str | None, found: Any) -> None:
        if method == "Runtime.exceptionThrown":
            self.said.append(str(found["exceptionDetails"].get("exception", {}).get("description")))
        elif (
            method == "Log.entryAdded" and found["entry"]["level"] == "error" and found["entry"]["source"] != "network"
        ):
            self.said.append(str(found["entry"]["text"]))
        elif method == "Network.requestWillBeSent":
            self.requests.append(str(found["request"]["url"]))

    # Looking.

    def run(self, expression: str) -> Any:
        """The value of an expression in the page."""
        found = self.call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in found, (expression, found["exceptionDetails"])
        return found["result"].get("value")

    def wait(self, expression: str) -> Any:
        """Until it is true, which the page tells as soon as something in it changes."""
        found = self.run(WAIT % (expression, int(PATIENCE * 1000)))
        assert found, f"it never came to be: {expression}\n{self.run('document.body.innerText')[:3000]}\n{self.said}"
        return found

    def sees(self, text: str, within: str = "body") -> None:
        place = f"[...document.querySelectorAll({json.dumps(within)})]"
        self.wait(f"{place}.some((each) => (each.innerText ?? each.textContent).includes({json.dumps(text)}))")

    def text(self, selector: str) -> str:
        return str(self.run(f"document.querySelector({json.dumps(selector)}).innerText"))

    # Doing.

    def open(self, url: str) -> None:
        self.call("Page.navigate", url=url)
        self.wait("document.readyState === 'complete' && document.querySelector('h1')")

    def click(self, selector: str, text: str = "") -> None:
        """In the middle of the first that is visible, and says the text; it must be what is there."""
        first = (
            f"[...document.querySelectorAll({json.dumps(selector)})].find((each) => each.getClientRects().length"
            f" && !each.disabled && each.innerText.includes({json.dumps(text)}))"
        )
        self.wait(f"!!{first}")
        found = self.run(
            f"(() => {{ const node = {first}; node.scrollIntoView({{block: 'center', inline: 'center'}});"
            " const box = node.getBoundingClientRect(); const x = box.x + box.width / 2, y = box.y + box.height / 2;"
            " const top = document.elementFromPoint(x, y);"
            " return {x, y, free: top === node || node.contains(top) || !!top?.contains(node)} })()"
        )
        assert found["free"], f"something covers {selector} {text}"
        for kind, buttons in (("mouseMoved", 0), ("mousePressed", 1), ("mouseReleased", 0)):
            self.call(
                "Input.dispatchMouseEvent", type=kind, x=found["x"], y=found["y"], buttons=buttons, clickCount=1,
                button="none" if kind == "mouseMoved" else "left",
            )  # fmt: skip

    def type(self, text: str) -> None:
        self.call("Input.insertText", text=text)

    def fill(self, selector: str, text: str) -> None:
        """In place of what is in a field."""
        self.click(selector)
        self.run("document.activeElement.select()")
        self.type(text)

    def press(self, key: str, shift: bool = False) -> None:
        code, text = KEYS[key]
        held = 8 if shift else 0
        common: dict[str, object] = {"key": key, "code": key, "windowsVirtualKeyCode": code, "modifiers": held}
        self.call("Input.dispatchKeyEvent", type="keyDown" if text else "rawKeyDown", text=text, **common)
        self.call("Input.dispatchKeyEvent", type="keyUp", **common)

    def size(self, width: int, height: int, phone: bool = False) -> None:
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=phone,
            screenWidth=width, screenHeight=height,
        )  # fmt: skip
        self.wait(f"innerWidth === {width}")

    def system_theme(self, name: str) -> None:
        features = [{"name": "prefers-color-scheme", "value": name}]
        self.call("Emulation.setEmulatedMedia", features=features)

    def picture(self, file: Path, height: int | None = None) -> None:
        """Of what is on the screen; `height`: of its upper part."""
        self.run(
            "document.fonts.ready.then(() => Promise.allSettled(document.getAnimations().map((each) => each.finished)))"
            ".then(() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done))))"
        )
        width = self.run("innerWidth")
        part = {"clip": {"x": 0, "y": 0, "width": width, "height": height, "scale": 1}} if height else {}
        found = self.call("Page.captureScreenshot", format="png", **part)
        file.write_bytes(base64.b64decode(found["data"]))

    def close(self) -> None:
        self._session = None
        try:
            self.call("Browser.close")
            self._process.wait(20)
        except (AssertionError, OSError, subprocess.TimeoutExpired):
            self._process.kill()
            self._process.wait()
        os.close(self._commands)
        os.close(self._answers)
