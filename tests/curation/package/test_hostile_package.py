"""Trust packages of strangers, whose digests are right: nothing that they name is run, and odd files are refused."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tiny_package import tiny_package

from curation.config import DomainConfig
from curation.domains import get_domain
from curation.errors import ConfigError, ModelError, PackageError
from curation.package import TrustPackage, check_fits, load
from curation.package.folder import _digest, _facts, _File
from curation.trust import load_fitted


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> TrustPackage:
    return tiny_package(tmp_path_factory.mktemp("packages") / "tiny")


def sealed(good: TrustPackage, folder: Path, change: Callable[[dict[str, Any]], None], **files: bytes) -> Path:
    """A copy with another description and other files, and the digests that belong to them."""
    shutil.copytree(good.uri, folder)
    content = json.loads((folder / "package.json").read_text())
    for name, written in files.items():
        (path := folder / name.replace("__", ".")).write_bytes(written)
        content["files"][path.name] = _facts(path).model_dump()
    change(content["description"])
    described = type(good.description).model_construct(**content["description"])
    try:
        described = type(good.description).model_validate(content["description"])
    except ValueError:
        pass  # refused before digests are compared
    else:
        found = {name: _File(**told) for name, told in content["files"].items()}
        content["digest"] = _digest(described, found)
    (folder / "package.json").write_text(json.dumps(content))
    return folder


def test_a_package_cannot_name_a_command_as_its_domain(good: TrustPackage, tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    options = {"name": "subprocess:Popen", "args": ["touch", str(ran)]}
    found = load(sealed(good, tmp_path / "copy", lambda told: told.update(domain=options)))
    with pytest.raises(ConfigError, match="'subprocess:Popen' is no domain: it has no read"):
        check_fits(found)
    with pytest.raises(ConfigError, match="'os:system' is no domain"):
        get_domain(DomainConfig.model_validate({"name": "os:system", "command": f"touch {ran}"}))
    assert not ran.exists()


def test_a_package_cannot_allow_its_teacher_to_run_code(good: TrustPackage, tmp_path: Path) -> None:
    teacher = {"base": "stranger/model", "revision": "0" * 40, "adapter": None, "code": "0" * 40}
    folder = sealed(good, tmp_path / "copy", lambda told: told.update(teacher=teacher))
    with pytest.raises(PackageError, match=r"teacher.*a package allows no code to run"):
        load(folder)


def test_files_that_are_not_what_the_description_tells_are_refused(good: TrustPackage, tmp_path: Path) -> None:
    odd = {"shift__safetensors": b"odd", "calibration__parquet": b"odd"}
    found = load(sealed(good, tmp_path / "copy", lambda told: None, **odd))
    with pytest.raises(PackageError, match=r"shift\.safetensors is not what package\.json tells"):
        found.reference()
    with pytest.raises(PackageError, match=r"calibration\.parquet is not what package\.json tells"):
        found.calibration()


@pytest.mark.parametrize("made_by", ["subprocess:Popen", "nowhere:Thing", "os", 3])
def test_a_trust_function_is_made_by_a_class_that_loads_one(
    good: TrustPackage, tmp_path: Path, made_by: object
) -> None:
    from curation.refs import TrustRef
    from curation.storage.paths import place
    from curation.trust import saved

    shutil.copytree(place(good.trust.uri), tmp_path / "trust")
    path = tmp_path / "trust/description.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "made_by": made_by}))
    with pytest.raises(ModelError, match="not what this version saved"):
        load_fitted(saved.pin(tmp_path / "trust", TrustRef))
