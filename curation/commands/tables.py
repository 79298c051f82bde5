"""The tables that commands print: a line a model, numbers with their intervals."""

from typing import Any


def arms_table(content: dict[str, Any]) -> str:
    """One line each for teacher, base and the arms of the last generation: per cent with 95 % intervals."""
    lines = [f"{'':<26}{'rows':>8}  {'purity %':<24}{'test accuracy %':<24}{'recovery':>9}  {'p against GT':>13}"]
    for name in ("teacher", "base"):
        accuracy = content.get(name) or {}
        if told := _estimate(accuracy.get("test", accuracy)):
            lines.append(f"{name:<26}{'':>8}  {'':<24}{told}")
    for arm in content["arms"]:
        recovery, p_value = arm.get("recovery"), arm.get("p_value_vs_ground_truth")
        lines.append(
            f"{arm['name']:<26}{arm.get('num_selected') or '':>8}  {_estimate(arm.get('purity')):<24}"
            f"{_estimate(arm.get('accuracy')):<24}{'' if recovery is None else f'{recovery:.2f}':>9}  "
            f"{'' if p_value is None else f'{p_value:.3g}':>13}"
        )
    return "\n".join(lines)


def combined_table(content: dict[str, Any]) -> str:
    """One line each for teacher, base and arms over all runs: per cent with 95 % intervals over rows and over runs."""
    strata = ", ".join(f"{name} ({runs})" for name, runs in content["benchmarks"].items())
    lines = [f"{len(content['runs'])} runs: {strata}", f"{'':<26}{'purity %':<24}{'over runs':<16}"]
    lines[-1] += f"{'test accuracy %':<24}{'over runs':<16}{'recovery':>9}  {'pooled p against GT':>19}"
    for name in ("teacher", "base"):
        accuracy = content.get(name) or {}
        if told := _estimate(accuracy := accuracy.get("test", accuracy)):
            lines.append(f"{name:<26}{'':<40}{told:<24}{_over_runs(accuracy)}")
    for arm in content["arms"]:
        recovery, p_value = arm["recovery"], arm["p_value_vs_ground_truth"]
        lines.append(
            f"{arm['name']:<26}{_estimate(arm['purity']):<24}{_over_runs(arm['purity']):<16}"
            f"{_estimate(arm['accuracy']):<24}{_over_runs(arm['accuracy']):<16}"
            f"{'' if recovery is None else format(recovery['value'], '.2f'):>9}  "
            f"{'' if p_value is None else format(p_value, '.3g'):>19}"
        )
    if (rows := content["test_rows"]) and (shared := rows["total"] - rows["distinct"]):
        lines.append(f"{shared:,} of {rows['total']:,} test rows occur in several runs: use the intervals over runs")
    return "\n".join(lines)


def _over_runs(value: dict[str, Any] | None) -> str:
    runs = (value or {}).get("runs")
    return "" if runs is None else f"{100 * runs['low']:.1f} to {100 * runs['high']:.1f}"


def _estimate(value: dict[str, Any] | None) -> str:
    if value is None or value.get("value") is None:
        return ""
    return f"{100 * value['value']:.1f} ({100 * value['low']:.1f} to {100 * value['high']:.1f})"
