"""A filter's output opened: package, teacher, pool and output checked against each other, and what is to be done."""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import yaml

from curation.cluster import capacity
from curation.config import SourceConfig
from curation.config.filter import WORK, FilterConfig
from curation.config.load import load_filter
from curation.errors import ConfigError, RunDirError
from curation.models import named
from curation.package import TrustPackage, check_content, check_fits, check_runs, check_verdict, load, teacher_of
from curation.pipeline.filter.cascade import Settled, settle
from curation.pipeline.filter.output import check_home
from curation.pipeline.filter.stages import CUT, Described, Round, describe
from curation.refs import ModelRef
from curation.rundir.graph import Stage, statuses
from curation.rundir.manifest import Manifest
from curation.sources import SourceFile, check_unchanged, discover
from curation.stages.partitions import check_columns
from curation.stages.pool import PoolRows
from curation.storage import lease
from curation.storage.cache import fetched, staged
from curation.storage.paths import Place, require_reachable, write_atomically
from curation.telemetry.console import say

CONFIG = "config.yaml"
"""Beside the record: the configuration of the last start."""


EXTRA = (pa.field("label", pa.string()), pa.field("source_file", pa.string()))
"""Columns that a filter writes beside the pool's, by which its output can be partitioned."""


@dataclass(frozen=True, kw_only=True)
class Opened:
    """An output, and what is to be done in it."""

    config: FilterConfig
    package: TrustPackage
    rounds: Sequence[Round]
    described: Described
    manifest: Manifest
    first_cut: Settled | None = None

    @property
    def pool(self) -> str:
        """How many rows the pool has and how many of them are new, in words."""
        new = [rnd for rnd in self.rounds if self.described.rounds[rnd.name].pool.name not in self.manifest.stages]
        words = f"pool: {_counted(self.rounds)}"
        return f"{words}, of which {_counted(new)} new" if new and len(new) < len(self.rounds) else words

    @property
    def need(self) -> capacity.Need:
        """Resources that one actor of the teacher needs of the cluster."""
        return capacity.Need(key="teacher.actors", count=1, resources=self.config.teacher.actors.each)

    def is_settled(self, stages: Sequence[Stage]) -> bool:
        """Whether these stages are done."""
        return all(status.is_settled for status in statuses(stages, self.manifest.records))


def _counted(rounds: Sequence[Round]) -> str:
    files = [file for rnd in rounds for file in rnd.files]
    return f"{sum(file.num_rows for file in files):,} rows in {len(files):,} {'file' if len(files) == 1 else 'files'}"


def check(config: FilterConfig) -> tuple[TrustPackage, ModelRef | None]:
    """The package of a filter and its teacher as it can be loaded here, if they and the output's place fit each other.

    Raises:
        UserError: as :func:`teacher_here`; the output holds other files, or lies in the pool.
    """
    home = config.output_directory
    require_reachable(home)
    package = load(config.package, allow_code=config.allow_code)
    if (warning := check_verdict(package, anyway=config.anyway)) is not None:
        say(f"warning: {warning}")
    teacher = teacher_here(config, package)
    check_content(package)
    check_home(home)
    if str(home).startswith(f"{config.pool.path.rstrip('/')}/"):
        raise _inside(config, config.pool.path)
    return package, teacher


def look(config: FilterConfig, *, recut: bool = False) -> Opened:
    """An output as ``curate filter`` would open it; nothing is written.

    Raises:
        UserError: as :func:`check` and :func:`open_filter`.
    """
    guard = lease.unguarded  # for nothing is written
    return open_filter(config, *check(config), recut=recut, save=False, guard=guard)


def open_filter(
    config: FilterConfig,
    package: TrustPackage,
    teacher: ModelRef | None,
    *,
    recut: bool,
    save: bool,
    guard: lease.Guard,
) -> Opened:
    """The output of a filter, checked against its configuration, with files that are new in the pool as a new round.

    ``save``: the round, the configuration and a copy of the package are written; ``guard`` is called before.

    Raises:
        UserError: the output belongs to another package or pool, or a file changed or is gone.
    """
    manifest = Manifest.load(config.directory, guard=guard)
    if save:
        manifest.require_here()
    identity = {
        "package": package.digest,
        "backend": config.teacher.asking(package.description.ask).backend,
        "columns": list(config.pool.columns),
        "seed": config.seed,
    }
    _check_identity(config, manifest.identity, identity)
    source = SourceConfig(path=config.pool.path, format=config.pool.format, delimiter=config.pool.delimiter)
    before = [file for files in manifest.source_files.values() for file in files]
    now = discover(source, before)
    if inside := [file.path for file in now if file.path.startswith(f"{config.output_directory}/")]:
        raise _inside(config, inside[0])
    check_unchanged(before, now)
    known = {file.path for file in before}
    files = dict(manifest.source_files)
    if new := [file for file in now if file.path not in known]:
        files[f"{len(files):04}"] = new
    rounds = [_round(config, package, name, items) for name, items in files.items()]
    everything = PoolRows(files=tuple(now), domain=package.description.domain, columns=config.pool.columns)
    everything.check()
    schema = everything.schema()
    check_columns(config.output.partition_by, pa.schema([*(item for item in schema if item.name != "error"), *EXTRA]))
    made = manifest.stages[CUT].outputs if CUT in manifest.stages else None
    among = None if made is None or recut else list(made["rounds"])
    first_cut = _first_cut(config, package, rounds, manifest, among)
    manifest.identify(identity, {name: [file.recorded() for file in items] for name, items in files.items()}, save=save)
    kept = package
    if save:
        kept = _keep_package(config, package)
        settings = config.model_dump(mode="json")
        write_atomically(config.directory / CONFIG, yaml.safe_dump(settings, sort_keys=False))
    described = describe(config, kept, teacher, rounds, made=made, recut=recut, first_cut=first_cut)
    return Opened(
        config=config, package=kept, rounds=rounds, described=described, manifest=manifest, first_cut=first_cut
    )


def _first_cut(
    config: FilterConfig, package: TrustPackage, rounds: Sequence[Round], manifest: Manifest, among: list[str] | None
) -> Settled | None:
    """The first cut of the filter; ``among`` names the rounds of a cut that is kept, None: it is made of all."""
    labelled = manifest.stages.get(f"label-{rounds[0].name}")
    before = None if labelled is None else labelled.inputs.get("first_cut")
    if among is None:  # before there are labels the first round alone: then files that come meanwhile change nothing
        among = [rnd.name for rnd in (rounds[:1] if before is None else rounds)]
    return settle(config, package, sum(rnd.rows.num_rows for rnd in rounds if rnd.name in among), before)


def config_at(home: Place, overrides: Sequence[str] = ()) -> FilterConfig:
    """The configuration with which a filter last wrote to ``home``, with the package that it keeps there.

    Raises:
        ConfigError: it cannot be read.
    """
    work = home / WORK
    given = {"output.path": str(home)}
    if (work / "package" / "package.json").is_file():
        given["package"] = str(work / "package")
    return load_filter(work / CONFIG, overrides, given)


def teacher_here(config: FilterConfig, package: TrustPackage) -> ModelRef | None:
    """The package's teacher as it can be loaded here; None for a backend without weights.

    Raises:
        PackageError: model, backend or scripted answers are not those of the package; the message has both.
    """
    check_runs(package, config.teacher)
    given = None
    if (model := config.teacher.model) is not None:
        if model.path is None:
            raise ConfigError("teacher.model: a model from scratch cannot be a package's teacher; give its path")
        if package.description.teacher is None:
            check_fits(package, teacher=ModelRef(base=model.path))
        given = named(model)
    check_fits(package)
    return teacher_of(package, given)


def _inside(config: FilterConfig, path: str) -> ConfigError:
    return ConfigError(
        f"output.path: {config.output_directory} and the pool ({path}) lie in each other, so that what is written "
        "would be filtered; keep them apart"
    )


def _check_identity(config: FilterConfig, before: dict[str, Any], now: dict[str, Any]) -> None:
    home = config.output_directory
    if not before:
        return
    if before["package"] != now["package"]:
        raise RunDirError(
            f"{home}: was filtered with the package of digest {before['package']}, and {config.package} has "
            f"{now['package']}; give another output"
        )
    for name, key in (("backend", "teacher.backend"), ("columns", "pool.columns"), ("seed", "seed")):
        if before[name] != now[name]:
            raise RunDirError(
                f"{home}: was filtered with {key} {before[name]}, and it is {now[name]} now; give another output, or "
                "undo the change"
            )


def _round(config: FilterConfig, package: TrustPackage, name: str, files: Sequence[SourceFile]) -> Round:
    ordered = tuple(sorted(files, key=lambda file: file.index))
    return Round(
        name=name,
        rows=PoolRows(files=ordered, domain=package.description.domain, columns=config.pool.columns),
    )


def _keep_package(config: FilterConfig, package: TrustPackage) -> TrustPackage:
    """A copy of the package beside the labels, so that an output explains itself and any node can read it."""
    copy = config.directory / "package"
    is_there = (copy / "package.json").is_file()
    kept = load(copy, allow_code=package.allow_code) if is_there else copied(package, copy)
    if kept.digest != package.digest:
        raise RunDirError(
            f"{copy}: has the digest {kept.digest}, and {config.package} has {package.digest}; remove that folder"
        )
    return kept


def copied(package: TrustPackage, to: Place) -> TrustPackage:
    """A copy of a package, in a folder that every node can read."""
    with staged(to) as local:
        shutil.copytree(fetched(package.uri), local, dirs_exist_ok=True)
    return load(to, allow_code=package.allow_code)
