"""Runs a filter: opens its output, does what is missing, and writes what was made of it into ``filter.json``."""

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

from curation.cluster import capacity, membership
from curation.cluster.session import local_or_cluster
from curation.config import SourceConfig
from curation.config.filter import FilterConfig
from curation.errors import ConfigError, PackageError, RunDirError, ShiftError
from curation.models import named
from curation.package import TrustPackage, check_fits, load, teacher_of
from curation.pipeline.filter_output import Content, check_home, content_of, load_content, publish
from curation.pipeline.filtering import CUT, Described, Round, describe
from curation.refs import ModelRef
from curation.registry import BACKENDS
from curation.rundir.graph import Stage, statuses
from curation.rundir.manifest import Manifest
from curation.rundir.run import Run, files_of
from curation.sources import SourceFile, check_unchanged, discover
from curation.stages.pool import PoolRows
from curation.storage import lease
from curation.storage.cache import fetched, staged
from curation.storage.paths import require_reachable
from curation.telemetry.console import say


class Filtered(NamedTuple):
    """What a filter made."""

    content: Content
    """``filter.json``."""
    did: bool
    """Whether anything was left to do."""
    alarm: str | None
    """Why the rows of the newest round are not like those that trust was fitted on; None where they show no clear
    difference, or ``on_shift`` is ``ignore``."""


@dataclass(frozen=True, kw_only=True)
class Opened:
    """An output, and what is to be done in it."""

    config: FilterConfig
    package: TrustPackage
    rounds: Sequence[Round]
    described: Described
    manifest: Manifest

    def is_settled(self, stages: Sequence[Stage]) -> bool:
        """Whether these stages are done."""
        return all(status.is_settled for status in statuses(stages, self.manifest.records))


def run_filter(config: FilterConfig, *, recut: bool = False, wait: bool = False) -> Filtered:
    """Label what is new in the pool, write what passes, and say what was made.

    ``recut`` makes the cut again over everything that is labelled. Where another driver works on the output, this one
    is refused or, with ``wait``, begins when that one has ended.

    Raises:
        UserError: package, pool, output and rule do not fit each other, or nothing passes.
        ShiftError: ``on_shift`` is ``fail``, and rows that are not written yet differ clearly from the package's.
    """
    home = config.output_directory
    require_reachable(home)
    package = load(config.package)
    teacher = teacher_here(config, package)
    check_home(home)
    if str(home).startswith(f"{config.pool.path.rstrip('/')}/"):
        raise _inside(config, config.pool.path)
    with lease.hold(config.work_directory, wait=wait) as held, files_of(config.work_directory):
        guard = held.still_held
        opened = open_filter(config, package, teacher, recut=recut, guard=guard)
        did = not opened.is_settled(opened.described.all)
        if did:
            with _at_work(opened) as run:
                run.do(opened.described.looking)
                _alarm(opened)
                run.do(opened.described.all)
        before = load_content(home)
        content = content_of(config, package, opened.rounds, opened.described, opened.manifest, before)
        publish(home, content, before, guard)
    shift = content["rounds"][-1]["shift"]
    alarm = shift["warning"] if config.on_shift != "ignore" and shift is not None and shift["alarm"] else None
    return Filtered(content, did, alarm)


def open_filter(
    config: FilterConfig, package: TrustPackage, teacher: ModelRef | None, *, recut: bool, guard: lease.Guard
) -> Opened:
    """The output of a filter, checked against its configuration, with files that are new in the pool as a new round.

    Raises:
        UserError: the output belongs to another package or pool, or a file changed or is gone.
    """
    manifest = Manifest.load(config.work_directory, guard=guard)
    identity = {
        "package": package.digest,
        "backend": config.teacher.asking(package.description.ask).backend,
        "columns": list(config.pool.columns),
        "seed": config.seed,
    }
    _check_identity(config, manifest.identity, identity)
    source = SourceConfig(path=config.pool.path, format=config.pool.format)
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
    everything.schema()
    manifest.identify(identity, {name: [file.to_json() for file in items] for name, items in files.items()}, save=True)
    kept = _keep_package(config, package)
    made = manifest.stages[CUT].outputs if CUT in manifest.stages else None
    described = describe(config, kept, teacher, rounds, made=made, recut=recut)
    return Opened(config=config, package=kept, rounds=rounds, described=described, manifest=manifest)


def teacher_here(config: FilterConfig, package: TrustPackage) -> ModelRef | None:
    """The package's teacher as it can be loaded here; None for a backend without weights.

    Raises:
        PackageError: model, backend or scripted answers are not those of the package; the message has both.
    """
    asked, told = config.teacher, package.description.ask
    if (
        asked.backend is not None
        and asked.backend != told.backend
        and not (_weighs(asked.backend) and _weighs(told.backend))
    ):
        raise PackageError(
            f"{package.uri}: was fitted on answers of the backend {told.backend}, and teacher.backend is "
            f"{asked.backend}; only backends that load the same weights stand for each other"
        )
    if (scripted := asked.scripted) is not None:
        for name in ("completions", "state_size"):
            if (mine := getattr(scripted, name)) != (was := getattr(told.scripted, name)):
                raise PackageError(
                    f"{package.uri}: was fitted on a scripted teacher with {name} {was}, and teacher.scripted has "
                    f"{mine}; leave that key as the package has it"
                )
    given = None
    if (model := asked.model) is not None:
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


def _weighs(backend: str) -> bool:
    """Whether a backend is one of ours that load a model's weights, so that another one can take its place."""
    return backend == "auto" or (backend in list(BACKENDS) and BACKENDS[backend].weights)


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
    copy = config.work_directory / "package"
    if not (copy / "package.json").is_file():
        with staged(copy) as local:
            shutil.copytree(fetched(package.uri), local, dirs_exist_ok=True)
    kept = load(copy)
    if kept.digest != package.digest:
        raise RunDirError(
            f"{copy}: has the digest {kept.digest}, and {config.package} has {package.digest}; remove that folder"
        )
    return kept


def _alarm(opened: Opened) -> None:
    """Tell of rounds that differ clearly from the package's rows; with ``on_shift: fail`` before they are written."""
    manifest = opened.manifest
    for name, stages in opened.described.rounds.items():
        if stages.shift is None or stages.write.name in manifest.stages:
            continue
        shift = manifest.stages[stages.shift.name].outputs["shift"]
        if shift["warning"] is not None:
            say(f"round {name}: {shift['warning']}")
        if shift["alarm"] and opened.config.on_shift == "fail":
            raise ShiftError(
                f"round {name}: {shift['warning']} Nothing of it was written (on_shift: fail); with --on-shift warn or "
                "ignore the same command writes it, and labels nothing again"
            )


@contextmanager
def _at_work(opened: Opened) -> Iterator[Run]:
    """Ray started or joined, and the cluster's nodes followed."""
    config, manifest = opened.config, opened.manifest
    actors = config.teacher.actors

    def nodes(num: int, came: list[str], left: list[str]) -> None:
        manifest.event("nodes", num=num, came=came, left=left)

    with local_or_cluster(config.ray):
        waits = capacity.check_room([capacity.Need(key="teacher.actors", count=1, resources=actors.each)])
        if waits is not None:
            say(waits)
        import transformers  # noqa: F401  it replaces its module while it is imported, which stages at once see

        run = Run(
            config.output_directory.name,
            manifest,
            max_stages=config.ray.max_stages,
            room=capacity.resources,
            hold_cpus=not capacity.is_one_machine(config.ray),
        )
        with membership.follow(nodes):
            yield run
