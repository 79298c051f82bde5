"""Headless Chromium for tests of pages, without a network; a test is skipped where it or selenium is not installed."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE localhost, EXCLUDE 127.0.0.1",
)

LOW_CONTRAST = """
const probe = document.createElement('canvas').getContext('2d', {willReadFrequently: true});
const rgba = colour => { probe.clearRect(0, 0, 1, 1); probe.fillStyle = colour; probe.fillRect(0, 0, 1, 1);
  return [...probe.getImageData(0, 0, 1, 1).data]; };
const over = (top, below) => { const a = top[3] / 255; return [0, 1, 2].map(i => a * top[i] + (1 - a) * below[i]); };
const behind = e => e === null ? [255, 255, 255]
  : over(rgba(getComputedStyle(e).backgroundColor), behind(e.parentElement));
const linear = v => v <= .04045 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4;
const light = c => { const [r, g, b] = c.map(v => linear(v / 255));
  return .2126 * r + .7152 * g + .0722 * b; };
const found = [], walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
let seen = 0;
for (let node; node = walk.nextNode();) {
  const e = node.parentElement;
  if (!node.textContent.trim() || e.closest('svg, style, script') || !e.getClientRects().length) continue;
  const style = getComputedStyle(e), below = behind(e), text = over(rgba(style.color), below);
  const [a, b] = [light(text), light(below)].sort((x, y) => y - x), ratio = (a + .05) / (b + .05);
  const size = parseFloat(style.fontSize), large = size >= 24 || size >= 18.66 && +style.fontWeight >= 700;
  seen++;
  if (ratio < (large ? 3 : 4.5))
    found.push(ratio.toFixed(2) + ' ' + e.tagName + '.' + e.className + ': ' + node.textContent.slice(0, 40));
}
return [seen, found];
"""
"""The number of texts of a page, and those whose contrast is below what WCAG AA asks."""


@contextmanager
def chromium(profile: Path, *flags: str) -> Iterator[Any]:
    """A driver of selenium with a profile of its own; its log has what pages write to the console."""
    webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed: pip install selenium")
    browser, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if not (browser and driver):
        pytest.skip("Chromium is not installed: apt-get install chromium chromium-driver")
    options = webdriver.ChromeOptions()
    options.binary_location = browser
    for flag in (*FLAGS, *flags, f"--user-data-dir={profile}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    started = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    try:
        yield started
    finally:
        started.quit()
