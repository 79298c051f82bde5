"""Takes ``docs/report.png``, the first screen of a report: ``python docs/picture.py runs/quickstart/report.html``.

It needs selenium, Chromium and its driver, which nothing else here installs.
"""

import argparse
import shutil
import tempfile
from io import BytesIO
from pathlib import Path

from PIL import Image
from selenium import webdriver

PICTURE = Path(__file__).resolve().parent / "report.png"
WIDTH, HEIGHT = 1100, 760
COLOURS = 64
"""Of the file; a report has few, and it is a quarter of the size."""


def main() -> None:
    """Open the report, and save what is seen first."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("report", type=Path)
    given = parser.parse_args()
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or ""
    with tempfile.TemporaryDirectory() as profile:
        for flag in ("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", f"--user-data-dir={profile}"):
            options.add_argument(flag)
        driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(shutil.which("chromedriver")))
        try:
            metrics = {"width": WIDTH, "height": HEIGHT, "deviceScaleFactor": 1, "mobile": False}
            driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
            driver.get(given.report.resolve().as_uri())
            shot = Image.open(BytesIO(driver.get_screenshot_as_png())).convert("RGB")
        finally:
            driver.quit()
    shot.quantize(COLOURS).save(PICTURE, optimize=True)
    print(f"{PICTURE}: {shot.width} x {shot.height}, {PICTURE.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
