"""Trust packages of strangers, whose digests are right: nothing that they name is run, and odd files are refused."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from sealed_package import sealed
from tiny_package import sums, tiny_package

from curation.cli import main
from curation.commands.verify import Verified, verify
from curation.config import DomainConfig
from curation.config.filter import FilterTeacherConfig
from curation.domains import get_domain
from curation.errors import ConfigError, ModelError, PackageError
from curation.filter import Filter
from curation.filter.package.folder import TrustPackage, load
from curation.trust import load_fitted


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> TrustPackage:
    return tiny_package(tmp_path_factory.mktemp("packages") / "tiny")


def test_a_domain_that_is_none_is_not_made(tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    with pytest.raises(ConfigError, match="'os:system' is not a domain"):
        get_domain(DomainConfig.model_validate({"name": "os:system", "command": f"touch {ran}"}))
    assert not ran.exists()


@pytest.mark.parametrize("key, change", [
    ("domain", {"domain": {"name": "stranger:Popen", "args": ["ls"]}}),
    ("domain", {"domain": "stranger:Popen"}),
    ("domain", {"domain": {"name": "next_token", "of": {"name": "stranger:Popen"}}}),
    ("domain", {"domain": {"name": "next_token", "of": "stranger"}}),
    ("ask.backend", {"ask": {"backend": "stranger:TEACHER"}}),
    ("trust", {"trust": "stranger:TRUST"}),
])  # fmt: skip
def test_code_that_nobody_registered_is_refused_before_it_is_imported(
    good: TrustPackage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str, change: dict[str, Any]
) -> None:
    (tmp_path / "stranger.py").write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(tmp_path)
    folder = sealed(good, tmp_path / "copy", lambda told: told.update(change))
    for read in (load, Filter.load, lambda path: verify(str(path), lambda *_: None)):
        with pytest.raises(PackageError, match=f"as {key}, which neither .* nothing of it was imported.*--allow-code"):
            raise_damage(read(folder))


@pytest.mark.parametrize("is_inner", [False, True])
def test_a_command_that_checks_answers_is_refused_whatever_is_allowed(
    good: TrustPackage, tmp_path: Path, is_inner: bool
) -> None:
    check = {"command": ["touch", str(tmp_path / "ran")]}
    domain: dict[str, Any] = {"name": "text", "prompt": "{{ a }}", "reference": "b", "check": check}
    domain = {"name": "next_token", "of": domain} if is_inner else domain
    folder = sealed(good, tmp_path / "copy", lambda told: told.update(domain=domain))
    for allowed in ((), ("text", "touch")):
        with pytest.raises(PackageError, match=r"brings a command to check answers.*nothing of it was run"):
            load(folder, allow_code=allowed)
    assert not (tmp_path / "ran").exists()


def raise_damage(found: object) -> None:
    """What ``verify`` found, as an error."""
    assert isinstance(found, Verified) and found.damage
    raise PackageError(found.damage[0].problem)


def test_code_is_run_where_its_user_allows_it(
    good: TrustPackage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_sums.py").write_text("from curation.domains.math import Math\n\n\nclass Sums(Math): ...\n")
    monkeypatch.syspath_prepend(tmp_path)
    folder = sealed(good, tmp_path / "copy", lambda told: told.update(domain="own_sums:Sums"))
    (row,) = Filter.load(folder, allow_code=["own_sums:Sums"]).score(sums(1))
    assert row["error"] is None and row["trust"] is not None
    shown = CliRunner().invoke(main, ["verify", str(folder)])
    assert shown.exit_code == 1 and "add --allow-code own_sums:Sums" in shown.output
    assert CliRunner().invoke(main, ["verify", str(folder), "--allow-code", "own_sums:Sums"]).exit_code == 0


@pytest.mark.parametrize("key, value", [
    ("scripted", {"log": "/tmp/a/users/file"}),
    ("scripted", {"poison_rows": [1]}),
    ("scripted", {"seconds_per_row": 3600}),
    ("vllm", {"engine": {"load_format": "dummy"}}),
    ("actors", {"max": 100_000}),
    ("chunk_rows", 1),
    ("batch_tokens", 1),
])  # fmt: skip
def test_a_package_does_not_say_how_its_teacher_runs(
    good: TrustPackage, tmp_path: Path, key: str, value: object
) -> None:
    folder = sealed(good, tmp_path / "copy", lambda told: told["ask"].update({key: value}))
    with pytest.raises(PackageError, match=rf"description\.ask\.{key}.*Extra inputs are not permitted"):
        load(folder)


def test_a_teacher_runs_as_its_user_says(good: TrustPackage) -> None:
    runs = FilterTeacherConfig(vllm={"engine": {"max_model_len": 64}}, batch_tokens=99, scripted={"log": "mine"})
    asked = runs.asking(good.description.ask)
    assert asked.answers == good.description.ask
    assert (asked.batch_tokens, asked.vllm.engine, asked.scripted.log) == (99, {"max_model_len": 64}, "mine")


@pytest.mark.parametrize("seed", [-2, 2**32, 2**80])
def test_a_seed_that_is_none_is_refused(good: TrustPackage, tmp_path: Path, seed: int) -> None:
    folder = sealed(good, tmp_path / "copy", lambda told: told.update(seed=seed))
    with pytest.raises(PackageError, match=r"description\.seed: .*Input should be"):
        load(folder)


def test_links_are_refused(good: TrustPackage, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("mine")
    folder = sealed(good, tmp_path / "copy", lambda told: None)
    (folder / "README.md").unlink()
    (folder / "README.md").symlink_to(secret)
    with pytest.raises(PackageError, match=r"README\.md is a link or a device.*nothing was read.*cp -rL"):
        load(folder)
    (folder / "README.md").unlink()
    os.mkfifo(folder / "README.md")
    with pytest.raises(PackageError, match=r"README\.md is a link or a device"):
        load(folder)


def test_json_that_is_nested_too_deep_is_refused(good: TrustPackage, tmp_path: Path) -> None:
    folder = sealed(good, tmp_path / "copy", lambda told: None)
    whole = (folder / "package.json").read_text()
    for depth in (500, 100_000):
        (folder / "package.json").write_text(
            whole.replace('"fit": {', '"fit": {"a":' + "[" * depth + "]" * depth + ",")
        )
        with pytest.raises(PackageError, match=r"package\.json is truncated, .*nested more than 100 deep"):
            load(folder)


def test_a_package_cannot_allow_its_teacher_to_run_code(good: TrustPackage, tmp_path: Path) -> None:
    teacher = {"base": "stranger/model", "revision": "0" * 40, "adapter": None, "code": "0" * 40}
    folder = sealed(good, tmp_path / "copy", lambda told: told.update(teacher=teacher))
    with pytest.raises(PackageError, match=r"teacher.*a package allows no code to run"):
        load(folder)


def test_files_that_are_not_what_the_description_tells_are_refused(good: TrustPackage, tmp_path: Path) -> None:
    odd = {"shift.safetensors": b"odd", "calibration.parquet": b"odd"}
    found = load(sealed(good, tmp_path / "copy", lambda told: None, odd))
    with pytest.raises(PackageError, match=r"shift\.safetensors is not what package\.json tells"):
        found.reference()
    with pytest.raises(PackageError, match=r"calibration\.parquet is not what package\.json tells"):
        found.calibration()


@pytest.mark.parametrize("made_by", ["stranger:Popen", "stranger", 3, None, ["a"]])
def test_a_trust_function_is_made_by_a_class_that_is_registered(
    good: TrustPackage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, made_by: object
) -> None:
    (tmp_path / "stranger.py").write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(tmp_path)
    described = json.loads((Path(good.uri) / "trust/description.json").read_text())
    changed = {"trust/description.json": json.dumps({**described, "made_by": made_by}).encode()}
    with pytest.raises(PackageError, match="as made_by, which neither this version"):
        load(sealed(good, tmp_path / "copy", lambda told: None, changed))


@pytest.mark.parametrize("made_by", ["nowhere:Thing", "os", 3])
def test_a_trust_function_is_made_by_a_class_that_loads_one(
    good: TrustPackage, tmp_path: Path, made_by: object
) -> None:
    from curation.storage.paths import to_place
    from curation.trust import saved

    shutil.copytree(to_place(good.trust.uri), tmp_path / "trust")
    path = tmp_path / "trust/description.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "made_by": made_by}))
    with pytest.raises(ModelError, match="was not saved by this version"):
        load_fitted(saved.pin(tmp_path / "trust"))


@pytest.mark.parametrize("change", [
    {"token_logprobs": 2**63}, {"scripted": {"completions": []}}, {"scripted": {"state_size": 2**40}},
    {"scripted": {"completions": ["\ud800"]}},
])  # fmt: skip
def test_sizes_without_end_nothing_and_half_a_character_are_refused(
    good: TrustPackage, tmp_path: Path, change: dict[str, Any]
) -> None:
    with pytest.raises(PackageError):
        load(sealed(good, tmp_path / "copy", lambda told: told["ask"].update(change)))
