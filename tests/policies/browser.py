"""Opens a page in a real headless Chromium, with a script of ours at its end, and gives back what that found."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

_NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome-headless-shell")
_FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--disable-extensions", "--disable-default-apps",
    "--disable-component-extensions-with-background-pages", "--disable-domain-reliability",
    "--disable-client-side-phishing-detection", "--metrics-recording-only", "--no-pings",
    "--disable-features=NetworkTimeServiceQuerying,OptimizationHints,MediaRouter,Translate,AutofillServerCommunication",
    # nothing of the browser's own gets out either
    "--host-resolver-rules=MAP * ~NOTFOUND",
    "--hide-scrollbars", "--force-device-scale-factor=1", "--virtual-time-budget=20000", "--enable-logging=stderr",
)  # fmt: skip
DARK = "--blink-settings=preferredColorScheme=0"
#: on a phone's screen: the page as a frame of that width, which a window cannot be
_PHONE = '<!doctype html><body style="margin:0"><iframe style="width:360px;height:740px;border:0" srcdoc="{}"></iframe></body>'
#: pairs of labels of one chart that have less than 2 pixels between them
OVERLAPPING = """return [...document.querySelectorAll('svg')].flatMap(svg => {
    const boxes = [...svg.querySelectorAll('text')].map(text => [text.textContent, text.getBoundingClientRect()]);
    const meet = (a, b) => a.left < b.right + 2 && b.left < a.right + 2 && a.top < b.bottom - 2 && b.top < a.bottom - 2;
    return boxes.flatMap(([one, a], at) => boxes.slice(at + 1).filter(([, b]) => meet(a, b)).map(([other]) => [one, other]));
})"""
_RESULT = re.compile(r'<pre id="told">(.*?)</pre>', re.DOTALL)


def find_browser() -> str | None:
    """The path of a browser: one on the path, else the one that playwright brought."""
    for name in _NAMES:
        found = shutil.which(name)
        if found is not None:
            return found
    brought = sorted(Path.home().glob(".cache/ms-playwright/chromium*/*/*headless*shell"))
    return str(brought[-1]) if brought else None


@dataclass(frozen=True)
class Shown:
    """What a page came to: what the script told, what the console said, and every address that the page asked for."""

    told: Any
    console: tuple[str, ...]
    addresses: tuple[str, ...]


class Browser:
    """Shows pages; each in a browser of its own with a profile of its own."""

    def __init__(self, path: str, scratch: Path) -> None:
        self._path = path
        self._scratch = scratch

    def show(self, page: str, script: str = "null", *flags: str, size: tuple[int, int] = (1200, 900)) -> Shown:
        """Opens ``page``, runs ``script`` (an expression or the body of a function that returns something)."""
        file = self._write(page.replace("</body>", f"{_ending(script)}</body>"))
        return self._run(file, flags, size)

    def show_on_phone(self, page: str, script: str) -> Shown:
        """The same in a frame as wide as a phone; the script runs in the frame."""
        inner = page.replace("</body>", f"{_ending(script, 'parent.document')}</body>")
        file = self._write(_PHONE.format(inner.replace("&", "&amp;").replace('"', "&quot;")))
        return self._run(file, (), (800, 900))

    def _write(self, page: str) -> Path:
        number = len(list(self._scratch.glob("*.html")))
        file = self._scratch / f"page-{number}.html"
        file.write_text(page, "utf-8")
        return file

    def _run(self, file: Path, flags: Sequence[str], size: tuple[int, int]) -> Shown:
        net_log = file.with_suffix(".netlog")
        flags = ("--dump-dom", f"--log-net-log={net_log}", f"--window-size={size[0]},{size[1]}", *flags)
        with tempfile.TemporaryDirectory(prefix="profile-", ignore_cleanup_errors=True) as profile:
            command = [self._path, *_FLAGS, f"--user-data-dir={profile}", *flags, file.as_uri()]
            done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
        found = _RESULT.search(done.stdout)
        told = None if found is None else json.loads(_plain(found[1]))
        console = tuple(line for line in done.stderr.splitlines() if ":CONSOLE" in line)
        return Shown(told, console, _asked_for(net_log.read_text("utf-8", errors="replace")))


def _asked_for(net_log: str) -> tuple[str, ...]:
    """The addresses that a page asked for; what the browser asks for by itself has no origin."""
    found = []
    for line in net_log.splitlines():
        if '"initiator":' in line:
            request = json.loads(line.strip().rstrip(",").removesuffix("]}"))["params"]
            if request["initiator"] != "not an origin":
                found.append(str(request["url"]))
    return tuple(found)


def _ending(script: str, document: str = "document") -> str:
    body = script if "return " in script else f"return {script}"
    return (
        "<script>{ const told = (() => {" + body + "})();"
        f"const at = {document}.createElement('pre'); at.id = 'told'; at.textContent = JSON.stringify(told);"
        f"{document}.body.append(at); }}</script>"
    )


def _plain(text: str) -> str:
    return text.replace("&lt;", "<").replace("&gt;", ">").replace("&nbsp;", "\u00a0").replace("&amp;", "&")


@pytest.fixture(scope="module")
def browser(missing: Callable[[str], None], tmp_path_factory: pytest.TempPathFactory) -> Browser:
    path = find_browser()
    if path is None:
        missing("a Chromium on the path (chromium, google-chrome)")
    return Browser(str(path), tmp_path_factory.mktemp("pages"))
