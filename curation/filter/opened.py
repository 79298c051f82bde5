"""Opening of a filter's output: checks of package, teacher, pool and output against each other, and its work."""

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import yaml

from curation.cluster import capacity
from curation.config import SourceConfig
from curation.config.filter import WORK, FilterConfig
from curation.config.load import load_filter
from curation.errors import ConfigError, RunDirError
from curation.filter.described import CUT, Described, FilterGate, describe, get_package_place, settle_gate
from curation.filter.output import check_home
from curation.filter.package.checks import check_content, check_package
from curation.filter.package.folder import PACKAGE, TrustPackage, copy_package, load
from curation.filter.stages.cut import check_keep
from curation.filter.stages.pool import PoolRows
from curation.pipeline.work import Opened
from curation.refs import ModelRef
from curation.rundir.manifest import Manifest
from curation.sources import SourceFile, check_unchanged, discover
from curation.storage import lease
from curation.storage.paths import Place, require_reachable, write_atomically
from curation.telemetry.console import say

CONFIG = "config.yaml"
"""File name of the configuration of the last start, in the folder of the run's record."""


@dataclass(frozen=True, kw_only=True)
class OpenedFilter(Opened[FilterConfig]):
    """The opened output of a filter, with the stages of its work."""

    package: TrustPackage
    rounds: Sequence[PoolRows]
    new: Sequence[PoolRows]
    """The rounds that have not been read yet."""
    described: Described
    gate: FilterGate

    def save(self) -> None:
        """Write the rounds, the configuration, and a copy of the package that any node can read."""
        self.manifest.save()
        copy, package = get_package_place(self.config), self.package
        is_there = (copy / PACKAGE).is_file()
        kept = load(copy, allow_code=package.allow_code) if is_there else copy_package(package, copy)
        if kept.digest != package.digest:
            raise RunDirError(
                f"{copy}: has the digest {kept.digest}, and {self.config.package} has {package.digest}; remove that "
                "folder"
            )
        settings = self.config.model_dump(mode="json")
        write_atomically(self.config.directory / CONFIG, yaml.safe_dump(settings, sort_keys=False))

    def begin(self) -> Iterator[str]:
        """Yield a description of the gate, if there is one."""
        yield from self.gate.words


def _describe_files(rounds: Sequence[PoolRows]) -> str:
    files = [file for rnd in rounds for file in rnd.files]
    return f"{sum(file.num_rows for file in files):,} rows in {len(files):,} {'file' if len(files) == 1 else 'files'}"


def check(config: FilterConfig) -> tuple[TrustPackage, ModelRef | None]:
    """Return a filter's package, and its teacher as it can be loaded here; refuse what does not fit the output."""
    home = config.output_directory
    require_reachable(home)
    package = load(config.package, allow_code=config.allow_code)
    teacher, warning = check_package(package, config.teacher, anyway=config.anyway)
    if warning is not None:
        say(f"warning: {warning}")
    check_content(package)
    sample = package.description.sample
    if not sample.states and not sample.num_texts and config.on_shift != "ignore":
        why = (
            f"on_shift: {config.on_shift}: {config.package}: has neither hidden states of its labelled rows nor their "
            "hashed words, so that the pool is not compared with them: look at 200 of the rows that are kept"
        )
        if config.on_shift == "fail":
            raise ConfigError(f"{why}, and set on_shift: warn or ignore, since nothing could ever fail")
        say(f"warning: {why}")
    check_home(home)
    if str(home).startswith(f"{config.pool.path.rstrip('/')}/"):
        raise _make_overlap_error(config, config.pool.path)
    return package, teacher


def look(config: FilterConfig, *, recut: bool = False) -> OpenedFilter:
    """Return an output as ``curate filter`` would open it, without writing anything."""
    return open_filter(config, *check(config), recut=recut, guard=lease.guard_nothing)


def open_filter(
    config: FilterConfig, package: TrustPackage, teacher: ModelRef | None, *, recut: bool, guard: lease.Guard
) -> OpenedFilter:
    """Open the output of a filter and check it against its configuration; new files in the pool form a new round.

    Nothing is written before :meth:`OpenedFilter.save`; ``guard`` is called before each irreversible change.

    Raises:
        UserError: the output belongs to another package or pool, or a file changed or is missing.
    """
    manifest = Manifest.load(config.directory, guard=guard)
    manifest.require_current()
    identity = {
        "package": package.digest,
        "backend": config.teacher.asking(package.description.ask).backend,
        "columns": list(config.pool.columns),
        "seed": config.seed,
    }
    home, before = config.output_directory, manifest.identity or identity
    if before["package"] != package.digest:
        raise RunDirError(
            f"{home}: was filtered with the package of digest {before['package']}, and {config.package} has "
            f"{package.digest}; give another output"
        )
    for name, key in {"backend": "teacher.backend", "columns": "pool.columns", "seed": "seed"}.items():
        if before[name] != identity[name]:
            raise RunDirError(
                f"{home}: was filtered with {key} {before[name]}, and it is {identity[name]} now; give another output, "
                "or undo the change"
            )
    files = _find_files(config, manifest)

    def make_rows(name: str, items: Iterable[SourceFile]) -> PoolRows:
        ordered = tuple(sorted(items, key=lambda file: file.index))
        return PoolRows(name=name, files=ordered, domain=package.description.domain, columns=config.pool.columns)

    rounds = [make_rows(name, items) for name, items in files.items()]
    everything = make_rows("", itertools.chain.from_iterable(files.values()))
    everything.check()
    made = manifest.stages[CUT].outputs if CUT in manifest.stages else None
    among = None if made is None or recut else list(made["rounds"])
    if among is None:
        check_keep(config.keep, package, everything.num_rows)
    first, sizes = manifest.stages.get(f"label-{rounds[0].name}"), {rnd.name: rnd.num_rows for rnd in rounds}
    labelled = {} if first is None else first.inputs
    gate = settle_gate(config=config, package=package, rounds=sizes, cut_rounds=among, labelled=labelled)
    described = describe(config, package, teacher, rounds, made=made, recut=recut, gate=gate)
    recorded = {name: [file.recorded() for file in items] for name, items in files.items()}
    manifest.identify(identity, recorded)
    new = [rnd for rnd in rounds if described.rounds[rnd.name].pool.name not in manifest.stages]
    words = f", of which {_describe_files(new)} new" if 0 < len(new) < len(rounds) else ""
    return OpenedFilter(
        config=config,
        manifest=manifest,
        name=config.output_directory.name,
        stages=[*described.before_writing, *(stages.write for stages in described.rounds.values())],
        needs=[capacity.Need(key="teacher.actors", count=1, resources=config.teacher.actors.each)],
        growth={"pool": f"pool: {_describe_files(rounds)}{words}"},
        package=package,
        rounds=rounds,
        new=new,
        described=described,
        gate=gate,
    )


def _find_files(config: FilterConfig, manifest: Manifest) -> dict[str, list[SourceFile]]:
    """Return the pool's files by round; new files form a round of their own."""
    source = SourceConfig(**{name: getattr(config.pool, name) for name in SourceConfig.model_fields})
    files = dict(manifest.source_files)
    before = [file for items in files.values() for file in items]
    now = discover(source, before)
    if inside := [file.path for file in now if file.path.startswith(f"{config.output_directory}/")]:
        raise _make_overlap_error(config, inside[0])
    check_unchanged(before, now)
    known = {file.path for file in before}
    if new := [file for file in now if file.path not in known]:
        files[f"{len(files):04}"] = new
    return files


def load_kept_config(home: Place, overrides: Sequence[str] = ()) -> FilterConfig:
    """Return the configuration of a filter's last start in ``home``, with the copy of the package there, if any."""
    work = home / WORK
    given = {"output.path": str(home)}
    if (work / "package" / PACKAGE).is_file():
        given["package"] = str(work / "package")
    return load_filter(work / CONFIG, overrides, given)


def _make_overlap_error(config: FilterConfig, path: str) -> ConfigError:
    return ConfigError(
        f"output.path: {config.output_directory} and the pool ({path}) lie in each other, so that what is written "
        "would be filtered; keep them apart"
    )
