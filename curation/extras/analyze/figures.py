"""The figures of ``curate analyze``: an engine's gaps, coherence of gradients (paper, section "Mechanisms")."""

from collections.abc import Mapping

from curation.arms import REFERENCE_ARM
from curation.extras.analyze.coherence import SHOWN
from curation.json_types import JsonView
from curation.report.charts import MOST_BANDS, drawing, drawn, figure_of, line_of, percents
from curation.report.headline import in_words

POWERS = (1, 2, 4, 8, 16, 32)
"""Ticks of k (paper, figure of the gradients)."""


def figures(found: JsonView, prefix: str) -> dict[str, str]:
    """Return the SVG of each figure that an analysis has numbers for, by name."""
    made = {}
    if (moves := found.get("advantages")) is not None and any(arm["n"] for arm in moves["arms"].values()):
        made["gaps"] = gaps_chart(moves["arms"], f"{prefix}-gaps")
    if (same := found.get("coherence")) is not None:
        made["energies"] = energies_chart(same["arms"], f"{prefix}-energies")
        made["energy_rows"] = rows_chart(same["arms"], f"{prefix}-energy-rows")
        made["spectrum"] = spectrum_chart(same["arms"], f"{prefix}-spectrum")
    return made


def gaps_chart(arms: Mapping[str, JsonView], name: str) -> str:
    """Shares of each arm's differing rows by the gap, gold minus chosen, in pawns; the end bins hold all beyond."""
    with drawing():
        figure, axes = figure_of()
        axes.axvline(0, color="#444444", linewidth=0.9, linestyle=(0, (2, 2)))
        for index, (arm, found) in enumerate(arms.items()):
            if not found["n"]:
                continue
            colour, dashes = line_of(arm, index)
            edges = [edge / 100 for edge in found["edges"]]
            shares = [count / found["n"] for count in found["counts"]]
            if arm == REFERENCE_ARM:
                axes.stairs(shares, edges, color=colour, linewidth=0, fill=True, alpha=0.18)
            axes.stairs(shares, edges, color=colour, linestyle=dashes, linewidth=1.5, label=in_words(arm))
        axes.set_xlim(edges[0], edges[-1])
        axes.set_xticks(edges[::2])
        axes.set_ylim(bottom=0)
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.10g}")
        percents(axes.yaxis)
        x = "gold move minus weak move, pawns (below 0: the weak move is stronger)"
        return drawn(figure, axes, name, x=x, y="share of the rows")


def energies_chart(arms: Mapping[str, JsonView], name: str) -> str:
    """Draw a row's mean top-k energy against k, a line an arm, with 95 % bands (of many arms, only the method's)."""
    with drawing():
        figure, axes = figure_of()
        for index, (arm, found) in enumerate(arms.items()):
            colour, dashes = line_of(arm, index)
            low, value, high = ([item[key] for item in found["energy"]] for key in ("low", "value", "high"))
            ks = range(1, len(value) + 1)
            if arm == REFERENCE_ARM or len(arms) <= MOST_BANDS:
                axes.fill_between(ks, low, [min(bound, 1.0) for bound in high], color=colour, alpha=0.13, linewidth=0)
            axes.plot(ks, value, color=colour, linestyle=dashes, label=in_words(arm))
        axes.set_xscale("log", base=2)
        axes.set_xticks([k for k in POWERS if k <= ks[-1]], [str(k) for k in POWERS if k <= ks[-1]])
        axes.set_xlim(1, ks[-1])
        axes.set_ylim(top=1)
        percents(axes.yaxis)
        return drawn(figure, axes, name, x="directions k (log scale)", y="mean top-k energy")


def rows_chart(arms: Mapping[str, JsonView], name: str) -> str:
    """Return the share of rows whose top-8 energy is at most so much, a line an arm."""
    with drawing():
        figure, axes = figure_of()
        starts = []
        for index, (arm, found) in enumerate(arms.items()):
            colour, dashes = line_of(arm, index)
            energy = found["quantiles"]
            starts.append(energy[1])
            axes.plot(
                energy, [number / 100 for number in range(101)], color=colour, linestyle=dashes, label=in_words(arm)
            )
        axes.set_xlim(min(starts), 1)
        axes.set_ylim(0, 1)
        percents(axes.xaxis)
        percents(axes.yaxis)
        return drawn(figure, axes, name, x=f"top-{SHOWN} energy of a row", y="share of the rows with at most that")


def spectrum_chart(arms: Mapping[str, JsonView], name: str) -> str:
    """Return the first singular values of the gradient matrix, a line an arm."""
    with drawing():
        figure, axes = figure_of()
        for index, (arm, found) in enumerate(arms.items()):
            colour, dashes = line_of(arm, index)
            values = [value for value in found["singular_values"] if value > 0]
            ks = range(1, len(values) + 1)
            axes.plot(ks, values, color=colour, linestyle=dashes, label=in_words(arm), marker=".", markersize=3)
        axes.set_yscale("log")
        axes.set_xlim(1, max(len(found["singular_values"]) for found in arms.values()))
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:.0f}")
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.10g}")
        return drawn(figure, axes, name, x="direction", y="singular value (log scale)")
