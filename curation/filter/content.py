"""The content of ``filter.json``: the cut, the numbers of rows read and kept in each round, the files, the costs."""

from curation.filter.described import CUT, Round
from curation.filter.opened import OpenedFilter
from curation.filter.output import DATA, Content
from curation.pipeline.kept_forecast import collect_used_since, read_forecast
from curation.report.costs import compare_forecast

FORMAT = 1


def collect_content(opened: OpenedFilter, before: Content | None) -> Content:
    """Return the manifest of an output whose stages are all done; ``before`` is the manifest that it replaces.

    Raises:
        RunDirError: the output's saved forecast cannot be read.
    """
    config, manifest, rounds = opened.config, opened.manifest, opened.rounds
    forecast = read_forecast(config)
    cut = {**manifest.stages[CUT].outputs, "seed": config.seed}
    superseded = [] if before is None else list(before["superseded"])
    if before is not None and before["cut"]["id"] != cut["id"]:
        superseded.append(before["cut"])
    described_rounds = [_round(opened, rnd, cut["id"]) for rnd in rounds]
    counts = [manifest.stages[stages.label.name].outputs["counts"] for stages in opened.described.rounds.values()]
    return {
        "format": FORMAT,
        "package": {"uri": config.package, "digest": opened.package.digest},
        "pool": config.pool.path,
        "data": config.output.format,
        "partition_by": list(config.output.partition_by),
        "columns": manifest.stages[opened.described.rounds[rounds[0].name].write.name].outputs["columns"],
        "cut": cut,
        **opened.gate.collect(counts, True),
        "superseded": superseded,
        "rows": sum(item["rows"] for item in described_rounds),
        "kept": sum(item["kept"] for item in described_rounds),
        "rounds": described_rounds,
        "files": _list_files(opened, cut["id"]),
        "costs": compare_forecast(forecast, {} if forecast is None else collect_used_since(forecast, manifest)),
    }


def _round(opened: OpenedFilter, rnd: Round, cut: str) -> Content:
    stages = vars(opened.described.rounds[rnd.name])
    records = {name: opened.manifest.stages[stage.name] for name, stage in stages.items() if stage is not None}
    counts = records["label"].outputs["counts"]
    return {
        "round": rnd.name,
        "started": records["pool"].started,
        "files": [{"path": file.path, "rows": file.num_rows} for file in rnd.files],
        "rows": counts["rows"],
        "labelled": counts["rows"] - sum(counts["errors"].values()) - counts["dropped"],
        **opened.gate.collect([counts], False),
        "unparsed": counts["unparsed"],
        "errors": counts["errors"],
        "prompt_tokens": counts["prompt_tokens"],
        "output_tokens": counts["output_tokens"],
        "kept": records["write"].rows,
        "cut": cut,
        "shift": records["shift"].outputs["shift"] if "shift" in records else None,
        "foreign": records["kept"].outputs["kept"],
        "seconds": {name: record.seconds for name, record in records.items()},
    }


def _list_files(opened: OpenedFilter, cut: str) -> list[Content]:
    """Return the data files, each with its cut and rounds; a Lance table is listed once, with its last version."""
    found: dict[str, Content] = {}
    for name, stages in opened.described.rounds.items():
        for file in opened.manifest.stages[stages.write.name].outputs["files"]:
            entry = {**file, "path": f"{DATA}/{file['path']}", "cut": cut, "rounds": [name]}
            if (known := found.get(entry["path"])) is not None:
                entry["rows"] += known["rows"]
                entry["rounds"] = [*known["rounds"], name]
                entry["version"] = max(entry["version"], known["version"])
            found[entry["path"]] = entry
    return list(found.values())
