"""The output folder of a filter: ``data/`` with the rows, ``filter.json`` that names its files, ``_curation/`` for us.

``filter.json`` is replaced as a whole, after all files that it names are complete. A reader that takes the files that
it names never sees a row twice or a half-written file, also while ``--recut`` writes.
"""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from curation.config.filter import WORK, FilterConfig
from curation.errors import RunDirError
from curation.package import TrustPackage
from curation.pipeline.filter.cascade import Settled, saved_by
from curation.pipeline.filter.stages import CUT, Described, Round
from curation.pipeline.kept_forecast import saved, used_since
from curation.report.costs import compared
from curation.rundir.manifest import Manifest
from curation.stages.write import data_files
from curation.storage.lease import Guard
from curation.storage.paths import Place, Remote, remove, write_atomically

FORMAT = 1
MANIFEST, DATA = "filter.json", "data"
_OURS = re.compile(
    r"part-[0-9a-f]{8}-\d{5,}\.(parquet|jsonl)|rows-[0-9a-f]{8}\.lance(\.ids|\.sums)?"
    r"|\.part-[0-9a-f]{8}-\d{5,}\.(parquet|jsonl)\.[0-9a-f]{32}"
)
"""The last are what a killed task leaves."""

Content = dict[str, Any]


def check_home(home: Place) -> None:
    """Refuse a folder with files that no filter wrote.

    Raises:
        RunDirError: the message names some of them; or the folder is a file, or was written by a filter whose record
            is gone.
    """
    if not isinstance(home, Remote) and home.is_file():
        raise RunDirError(f"{home}: is a file; give a folder as the output")
    names = sorted(path.name for path in home.iterdir()) if home.is_dir() else []
    if (home / WORK / "manifest.json").is_file():
        return
    if MANIFEST in names:
        raise RunDirError(
            f"{home}: has a {MANIFEST}, but no {WORK}/manifest.json, so new rows cannot be told from those that are "
            f"there; restore {WORK}, or give another output"
        )
    if foreign := [name for name in names if name != WORK]:
        more = f" and {len(foreign) - 3} more" if len(foreign) > 3 else ""
        raise RunDirError(
            f"{home}: holds files that are no filter's ({', '.join(foreign[:3])}{more}); give an empty or new folder"
        )


def load_content(home: Place) -> Content | None:
    """The manifest of an output; None where there is none yet."""
    try:
        content: Content = json.loads((home / MANIFEST).read_text())
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise RunDirError(f"{home / MANIFEST}: is not JSON ({error}); restore it, or give another output") from error
    return content


def content_of(
    config: FilterConfig,
    package: TrustPackage,
    rounds: Sequence[Round],
    described: Described,
    manifest: Manifest,
    before: Content | None,
    first_cut: Settled | None = None,
) -> Content:
    """The manifest of an output whose stages are all done.

    Raises:
        RunDirError: a forecast that was saved there cannot be read.
    """
    forecast = saved(config)
    cut = _cut(manifest.stages[CUT].outputs, config)
    superseded = [] if before is None else list(before["superseded"])
    if before is not None and before["cut"]["id"] != cut["id"]:
        superseded.append(before["cut"])
    described_rounds = [_round(rnd, described, manifest, cut["id"], first_cut) for rnd in rounds]
    return {
        "format": FORMAT,
        "package": {"uri": config.package, "digest": package.digest},
        "pool": config.pool.path,
        "data": config.output.format,
        "partition_by": list(config.output.partition_by),
        "columns": manifest.stages[described.rounds[rounds[0].name].write.name].outputs["columns"],
        "cut": cut,
        **({} if first_cut is None else {"first_cut": _first_cut(first_cut, rounds, described, manifest)}),
        "superseded": superseded,
        "rows": sum(item["rows"] for item in described_rounds),
        "kept": sum(item["kept"] for item in described_rounds),
        "rounds": described_rounds,
        "files": _files(rounds, described, manifest, cut["id"]),
        "costs": compared(forecast, {} if forecast is None else used_since(forecast, manifest)),
    }


def publish(home: Place, content: Content, before: Content | None, guard: Guard) -> None:
    """Replace the manifest of an output if it changed, and remove data files that it does not name."""
    if content != before:
        guard()
        write_atomically(home / MANIFEST, json.dumps(content, indent=1))
    named = {file["path"].removeprefix(f"{DATA}/") for file in content["files"]}
    for within in list(data_files(home / DATA)):
        path = home / DATA / within
        if _OURS.fullmatch(path.name) and within.removesuffix(".ids").removesuffix(".sums") not in named:
            guard()
            if path.is_dir():
                remove(path)
            else:
                path.unlink(missing_ok=True)
            _remove_empty(path.parent, home / DATA)


def _remove_empty(folder: Place, data: Place) -> None:
    """Remove the folders of partitions that no file is left in; an object store has none."""
    while isinstance(folder, Path) and folder != data and not any(folder.iterdir()):
        folder.rmdir()
        folder = folder.parent


def _cut(outputs: Mapping[str, Any], config: FilterConfig) -> Content:
    names = (
        "id",
        "rule",
        "rounds",
        "threshold",
        "lowest_trust",
        "num_labelled",
        "num_dropped",
        "num_short",
        "num_scored",
        "risk",
    )
    return {name: outputs[name] for name in names} | {"seed": config.seed}


def _first_cut(settled: Settled, rounds: Sequence[Round], described: Described, manifest: Manifest) -> Content:
    """The first cut with its evidence, and what it saved in all rounds together."""
    counts = [manifest.stages[described.rounds[rnd.name].label.name].outputs["counts"] for rnd in rounds]
    found = settled.found
    return {**settled.goal, "words": found.words(), "found": found.to_json(), **saved_by(settled, counts)}


def _round(rnd: Round, described: Described, manifest: Manifest, cut: str, first_cut: Settled | None) -> Content:
    stages = described.rounds[rnd.name]
    records = {name: manifest.stages[stage.name] for name, stage in stages._asdict().items() if stage is not None}
    labelled = records["label"].outputs
    counts = labelled["counts"]
    return {
        "round": rnd.name,
        "started": records["pool"].started,
        "files": [{"path": file.path, "rows": file.num_rows} for file in rnd.files],
        "rows": counts["rows"],
        "labelled": counts["rows"] - sum(counts["errors"].values()) - counts["dropped"],
        **({} if first_cut is None else {"first_cut": saved_by(first_cut, [counts])}),
        "unparsed": counts["unparsed"],
        "errors": counts["errors"],
        "prompt_tokens": counts["prompt_tokens"],
        "output_tokens": counts["output_tokens"],
        "kept": records["write"].rows,
        "cut": cut,
        "shift": records["shift"].outputs["shift"] if "shift" in records else None,
        "seconds": {name: record.seconds for name, record in records.items()},
    }


def _files(rounds: Sequence[Round], described: Described, manifest: Manifest, cut: str) -> list[Content]:
    """The data files with the round and the cut that let their rows in; a Lance table once, with its last version."""
    found: dict[str, Content] = {}
    for rnd in rounds:
        for file in manifest.stages[described.rounds[rnd.name].write.name].outputs["files"]:
            entry = {**file, "path": f"{DATA}/{file['path']}", "cut": cut, "rounds": [rnd.name]}
            if (known := found.get(entry["path"])) is not None:
                entry["rows"] += known["rows"]
                entry["rounds"] = [*known["rounds"], rnd.name]
                entry["version"] = max(entry["version"], known["version"])
            found[entry["path"]] = entry
    return list(found.values())
