"""Writes ``docs/reference/metrics.md``: every metric, from the code. Run it as ``python docs/metrics.py``."""

from pathlib import Path

from curation.telemetry import metrics

PAGE = Path(__file__).resolve().parent / "reference" / "metrics.md"
INTRO = f"""\
# Every metric

<!-- written by docs/{Path(__file__).name} -->

[Monitoring](../operations.md#monitoring) says how to collect them. Prometheus has them with the prefix `ray_` and the
tags `run` and `stage`.

| metric | kind | further tags | meaning |
| --- | --- | --- | --- |
"""


def draw() -> str:
    """Return the page; equal metrics give equal text."""
    meters = [value for value in vars(metrics).values() if isinstance(value, metrics.Meter)]
    tags = [", ".join(f"`{tag}`" for tag in meter.tags) for meter in meters]
    return INTRO + "".join(
        f"| `{meter.name}` | {meter.kind} | {also} | {meter.text} |\n" for meter, also in zip(meters, tags, strict=True)
    )


if __name__ == "__main__":
    PAGE.write_text(draw())
    print(PAGE)
