"""Descriptions of the result and the progress of a review."""

from curation.extras.review.folder import Review
from curation.extras.review.judged import judge
from curation.json_types import Json


def describe_standing(review: Review) -> list[str]:
    """Return lines on the draw and the progress of a review."""
    drawn, origin = review.drawn, review.origin
    judged = judge(review, review.log.standing())
    num_judged = len(judged.answer_M) - judged.count().none
    strata = f"{len(review.strata)} strata" if len(review.strata) > 1 else "one stratum"
    where = f"{drawn['num_region']:,} rows of {strata}"
    if origin.ranked:
        where += f" that score at least {drawn['floor']:.6g}"
    lines = [
        f"{review.folder}: {drawn['num_drawn']:,} rows of arm {origin.arm} of {origin.run}, drawn from {where} "
        f"({drawn['num_uniform']:,} of them uniformly), seed {drawn['seed']}",
        f"{num_judged:,} of {drawn['num_drawn']:,} rows have a verdict",
    ]
    if review.log.num_torn:
        lines.append(
            f"warning: {review.log.num_torn} lines of {review.folder / 'verdicts.jsonl'} were cut off; none was kept"
        )
    return lines


def describe_result(result: Json) -> list[str]:
    """Return the lines that ``curate review result`` prints."""
    answers = result["answers"]
    said = ", ".join(f"{number:,} {answer}" for answer, number in answers.items() if number and answer != "none")
    num_judged = result["num_drawn"] - answers["none"]
    lines = [f"review {result['review']}: {num_judged:,} of {result['num_drawn']:,} rows have a verdict: {said}"]
    lines.append(f"by {', '.join(f'{person} ({number:,})' for person, number in result['people'].items())}")
    if result["num_shared"]:
        named = f": {', '.join(result['disputed'][:5])}" if result["disputed"] else ""
        lines.append(
            f"{result['num_shared']:,} rows were judged by several people; right against wrong: "
            f"{answers['disputed']:,}{named}"
        )
    below = sum(stratum["num_rows"] for stratum in result["strata"] if not stratum["selected"])
    if result["num_selected"]:
        what = f"purity of the {result['num_selected']:,} rows that {result['arm']} selected"
        lines += _describe_purity(what, result["purity"])
    if below:
        rest = "below them" if result["num_selected"] else f"with a score, of which {result['arm']} selected none"
        lines += _describe_purity(f"share right of the {below:,} rows {rest}", result["below"])
    lines += _cut(result)
    if result["generation"] is not None and result["purity"] is not None:
        lines.append(f"`curate report {result['run']}` sets the purity into the report and its verdict")
    return lines


def _describe_purity(what: str, share: Json | None) -> list[str]:
    if share is None:
        return [f"{what}: not known, a stratum of them has no row that is right or wrong yet"]
    lines = [f"{what}: {_format_interval(share)}, {share['n']:,} rows, {share['method']}"]
    if share["answers"]["unsure"] + share["answers"]["disputed"]:
        wrong, right = (_format_interval(share[key]) for key in ("if_wrong", "if_right"))
        lines.append(f"  with unsure and disputed rows as wrong {wrong}, as right {right}")
    return lines


def _cut(result: Json) -> list[str]:
    cut, before, after = result["cut"], result["cut"]["before"], result["cut"]["after"]
    if after is None:
        why = "are not the best by score (a draw, or divided by label)"
        return [f"certified cut: none, as the rows of {result['arm']} {why}"]
    level = f"at most {cut['alpha']:.0%} wrong with confidence {1 - cut['delta']:.0%}"
    lines = [f"certified cut before the review: {_describe_before(before)}"]
    wrong = after["num_counted_wrong"]
    evidence = f"{after['num_calibration']:,} rows drawn uniformly"
    evidence += f", {wrong:,} unsure, disputed or not judged ones counted as wrong" if wrong else ""
    if after["threshold"] is None:
        needed = f"; about {after['needed']:,} would have sufficed ({after['needed_basis']})" if after["needed"] else ""
        return [*lines, f"certified cut after it: none, nothing is certified to hold {level} ({evidence}{needed})"]
    lines.append(
        f"certified cut after it: raw score {after['threshold']:.6g}, {after['n']:,} rows, {level} (observed "
        f"{after['noise']:.3f}, bound {after['bound']:.3f}; {evidence})"
    )
    if after["at_floor"]:
        lines.append("  it reaches the floor of the review: a larger selection may be certified, too")
    return lines


def _describe_before(before: Json | None) -> str:
    if before is None:
        return "none was asked for"
    if before["threshold"] is None:
        return "none, nothing could be certified"
    return (
        f"raw score {before['threshold']:.6g}, {before['n']:,} rows, at most {before['alpha']:.0%} wrong with "
        f"confidence {1 - before['delta']:.0%} ({before['num_calibration']:,} rows of splits.calibration)"
    )


def _format_interval(share: Json) -> str:
    return f"{share['value']:.3f} ({share['low']:.3f} to {share['high']:.3f})"
