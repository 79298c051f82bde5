"""Keep the reports of finished runs, small: ``python examples/make_reports.py runs/quickstart runs/mcqa runs/math``.

Each run's ``report.html`` goes to ``examples/reports/<name>.html``. Charts share the shapes of their letters and their
styles, positions have one decimal, and names that nothing refers to are left out; the page looks the same. Paths are
relative to the checkout.
"""

import argparse
import re
from pathlib import Path

HERE = Path(__file__).resolve().parent
LETTER = re.compile(r'<path id="[\w.-]*?(DejaVu[\w-]+)"( d="[^"]*"[^>]*/>)')
USE = re.compile(r'href="#[\w.-]*?(DejaVu[\w-]+)"')
CHECKOUT = re.compile(r"(?:/[\w.-]+)+/(?=examples/)")
"""The prefix of paths to a checkout's own files, which is removed."""
CHART = re.compile(r"<svg\b.*?</svg>", re.DOTALL)


def small(page: str) -> str:
    """Return the page in fewer bytes."""
    letters: dict[str, str] = {}
    styles: dict[str, str] = {}
    named = set(re.findall(r"#([\w.-]+)", page))

    def taken(found: re.Match[str]) -> str:
        letters.setdefault(found[1], found[2])
        return ""

    def styled(found: re.Match[str]) -> str:
        return f' class="{styles.setdefault(found[1], f"z{len(styles)}")}"'

    def chart(found: re.Match[str]) -> str:
        text = USE.sub(r'href="#\1"', LETTER.sub(taken, found[0]))
        text = re.sub(r' id="([\w.-]+)"', lambda item: item[0] if item[1] in named else "", text)
        text = re.sub(r' style="([^"]*)"(?=[^<>]*/>)', styled, text)
        text = re.sub(r"\b([1-9]\d*\.\d)\d{2,}", r"\1", text)
        text = re.sub(r"<!--.*?-->|<defs>\s*</defs>", "", text, flags=re.DOTALL)
        text = re.sub(r"([MLQCz]) (?=[\d-])", r"\1", re.sub(r"\s+", " ", text))
        return re.sub(r">\s+<", "><", text)

    page = CHART.sub(chart, page)
    shapes = "".join(f'<path id="{name}"{shape}' for name, shape in sorted(letters.items()))
    rules = "".join(f".{name}{{{style}}}" for style, name in styles.items())
    hidden = f'<svg width="0" height="0" style="position: absolute" aria-hidden="true"><defs>{shapes}</defs></svg>'
    return page.replace("<body>", f"<body><style>{rules}</style>{hidden}", 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="+")
    for run in parser.parse_args().runs:
        page = (run / "report.html").read_text()
        kept = HERE / "reports" / f"{run.name}.html"
        kept.parent.mkdir(exist_ok=True)
        local = page.replace(str(run.resolve()), f"runs/{run.name}")
        kept.write_text(small(CHECKOUT.sub("", local)))
        print(f"{kept}: {len(page):,} -> {kept.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
