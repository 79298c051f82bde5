"""Lines that ``curate analyze`` prints: the results of the engine and of the gradients, one line per arm."""

from collections.abc import Iterator

from curation.commands.tables import format_percent_interval
from curation.json_types import JsonView


def lines(found: JsonView) -> Iterator[str]:
    """Yield the lines of a generation's analysis."""
    if (moves := found.get("advantages")) is not None:
        yield f"weak moves that differ from gold, by {moves['engine']}, {moves['nodes']:,} nodes"
        yield f"{'':<26}{'asked':>7}  {'stronger %':<24}{'equal or stronger %':<24}{'winning mates %':<24}"
        for name, arm in moves["arms"].items():
            shares = (format_percent_interval(arm[key]) for key in ("stronger", "equal_or_stronger", "winning_mates"))
            yield f"{name:<26}{arm['n']:>7}  " + "".join(f"{share:<24}" for share in shares)
    if (same := found.get("coherence")) is not None:
        yield f"gradients of {same['n']:,} rows of each arm"
        yield f"{'':<26}{'top-8 energy %':<24}{'mean over k %':<24}{'dimension':>9}"
        for name, arm in same["arms"].items():
            top = arm["energy"][min(8, len(arm["energy"])) - 1]
            shares = (format_percent_interval(value) for value in (top, arm["mean_energy"]))
            yield f"{name:<26}" + "".join(f"{share:<24}" for share in shares) + f"{arm['dimension']:>9.1f}"
