"""The text tables that commands print: one line per model, numbers with their intervals."""

from curation.commands.printing import render_text
from curation.features import features
from curation.json_types import Json
from curation.registry import load_code


def format_arms(content: Json) -> str:
    """Return one line each for teacher, base and the last generation's arms, in per cent with 95 % intervals."""
    lines = [f"{'':<26}{'rows':>8}  {'purity %':<24}{'test accuracy %':<24}{'recovery':>9}  {'p against GT':>13}"]
    for name in ("teacher", "base"):
        accuracy: Json = content.get(name) or {}
        if text := format_percent_interval(accuracy.get("test", accuracy)):
            lines.append(f"{name:<26}{'':>8}  {'':<24}{text}")
    for arm in content["arms"]:
        recovery, p_value = arm.get("recovery"), arm.get("p_value_vs_ground_truth")
        lines.append(
            f"{arm['name']:<26}{arm.get('num_selected') or '':>8}  {format_percent_interval(arm.get('purity')):<24}"
            f"{format_percent_interval(arm.get('accuracy')):<24}{'' if recovery is None else f'{recovery:.2f}':>9}  "
            f"{'' if p_value is None else f'{p_value:.3g}':>13}"
        )
    lines += [f"{arm['name']:<26}dropped out: {arm['why']}" for arm in content.get("dropped") or []]
    return "\n".join(lines)


def describe_verdict(content: Json) -> list[str]:
    """Return a run's verdict in a sentence, then findings and next steps; empty if no arm ranks by trust."""
    found = content.get("verdict")
    if found is None:
        return []
    lines = [f"{found['sign']} {found['sentence']}"]
    for item in found["findings"]:
        lines += [f"  - {item['finding']}", f"    next: {item['next']}"]
    return lines


def describe_features(content: Json) -> list[str]:
    """Return lines on the findings of each generation's features; features without lines are skipped."""
    lines = []
    for generation in content["generations"]:
        for name, found in generation["features"].items():
            if (by := features()[name].lines) is not None:
                lines += [f"generation {generation['index']}: {name}", *load_code(by)(found)]
    return lines


def format_forecast(forecast: Json) -> str:
    """Return the forecast of the labelling stages: one line per amount with its 95 % interval, and its probes."""
    from curation.report.costs import UNITS, describe_amount

    return render_text("curation.commands:forecast.j2", forecast, units=UNITS, amount=describe_amount)


def format_percent_interval(value: Json | None) -> str:
    """Return an estimate in per cent with its interval, or an empty string if it is missing."""
    if value is None or value.get("value") is None:
        return ""
    return f"{100 * value['value']:.1f} ({100 * value['low']:.1f} to {100 * value['high']:.1f})"
