"""Trust packages: what is written is read, and nothing else is."""

import json
import pickle
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from filter_package import first_of, make_package
from tiny_package import description, of_model, probe, states_of, sums, tiny_package

from curation.config import DomainConfig
from curation.config.external import ServedConfig
from curation.domains import get_domain
from curation.domains.math import Math
from curation.errors import PackageError
from curation.extras.first_cut.threshold import find_first_cut, read_held_out
from curation.filter.package.checks import check_fits, check_teacher, collect_questions, find_teacher
from curation.filter.package.description import Sample
from curation.filter.package.folder import TrustPackage, load, pack_words, write
from curation.metrics.shift import sample_words
from curation.refs import ModelRef
from curation.selection.risk import calibrate
from curation.storage import digest
from curation.storage.digest import compute_model_digest
from curation.trust import load_fitted
from curation.trust.linear_probe import LinearProbe


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> TrustPackage:
    return tiny_package(tmp_path_factory.mktemp("packages") / "tiny")


@pytest.fixture
def copy(package: TrustPackage, tmp_path: Path) -> Path:
    return shutil.copytree(package.uri, tmp_path / "copy")


def refused(folder: Path | str) -> str:
    with pytest.raises(PackageError) as caught:
        load(folder)
    return str(caught.value)


def edited(folder: Path, change: Callable[[dict], None]) -> None:
    content = json.loads((folder / "package.json").read_text())
    change(content)
    (folder / "package.json").write_text(json.dumps(content))


def test_what_is_written_is_read(package: TrustPackage, copy: Path):
    fitted, calibration, hidden_ND = probe()
    found = load(str(copy))
    assert found.description == package.description == description()
    assert found.digest == package.digest and found.uri == str(copy)
    assert pickle.loads(pickle.dumps(found)) == found
    for mine, written in zip(found.calibration()[:3], calibration[:3], strict=True):
        assert np.array_equal(mine, written, equal_nan=mine.dtype != np.bool_) and mine.dtype == written.dtype
    assert np.isnan(found.calibration().raw_M).sum() == 1
    (states,) = found.reference().values()
    assert states.dtype == np.float16 and np.array_equal(states, hidden_ND)
    trust = load_fitted(found.trust)
    assert trust.calibration == fitted.calibration and trust.features == ("state_output_last",)
    assert np.array_equal(trust.weight_D, fitted.weight_D)


def test_the_digest_is_that_of_the_content(package: TrustPackage, tmp_path: Path):
    later = tiny_package(tmp_path / "later", created="2027-01-01T00:00:00+00:00", versions={"trust-curation": "9"})
    assert later.digest == package.digest  # another hour and version, the same trust
    assert tiny_package(tmp_path / "seed", seed=1).digest != package.digest  # another fit
    assert tiny_package(tmp_path / "label", decoding={"temperature": 1.0}).digest != package.digest


def test_a_certified_cut_is_the_same_from_the_package(package: TrustPackage):
    _, calibration, _ = probe()
    pool_N = states_of(np.arange(1000, 3000)).astype(np.float64) @ probe()[0].weight_D.numpy()
    cuts = [
        calibrate(
            np.where(np.isnan(rows.raw_M), -np.inf, rows.raw_M), rows.correct_M, pool_N, alpha=0.4, delta=0.1, seed=0
        )
        for rows in (package.calibration(), calibration)
    ]
    assert cuts[0] == cuts[1]


def test_without_calibration_rows_a_certified_cut_is_refused(tmp_path: Path):
    found = tiny_package(tmp_path / "bare", calibration=None)
    assert not (tmp_path / "bare/calibration.parquet").exists()
    with pytest.raises(PackageError, match="no cut can be certified by it; give fresh graded rows"):
        found.calibration()


def test_hashed_words_are_kept_where_there_are_no_states(package: TrustPackage, tmp_path: Path):
    fitted, calibration, _ = probe()
    words_NW = sample_words([f"a question of {n} and {n} more" for n in range(40)], seed=0)
    sample, arrays = Sample(num_rows=0, states=(), num_texts=40), pack_words(words_NW)
    made = {"trust": fitted.save(tmp_path / "fit"), "calibration": calibration}
    found = write(tmp_path / "words", description(sample=sample), reference=arrays, **made)
    assert (found.words() != words_NW).nnz == 0 and found.words().shape == words_NW.shape
    assert found.reference() == {} and words_NW.max() == 2
    assert "num_texts" not in package.description.content["sample"], "a package of before keeps its digest"
    for number, (name, wrong) in enumerate(
        (
            ("word_starts", arrays["word_starts"][::-1]),
            ("word_starts", arrays["word_starts"][:-1]),
            ("word_starts", arrays["word_starts"] * 2),
            ("word_counts", arrays["word_counts"].astype(np.float32)),
            ("word_hashes", arrays["word_hashes"][:-1]),
        )
    ):
        with pytest.raises(PackageError, match=r"shift.safetensors is not what package.json tells"):
            write(tmp_path / f"{number}", description(sample=sample), reference={**arrays, name: wrong}, **made).words()


@pytest.mark.parametrize("name", ["package.json", "trust/weights.safetensors", "trust/description.json",
                                  "calibration.parquet", "shift.safetensors"])  # fmt: skip
def test_a_truncated_a_changed_and_a_missing_file_are_refused(copy: Path, name: str):
    whole = (copy / name).read_bytes()
    (copy / name).write_bytes(whole[: len(whole) // 2])
    assert "truncated" in refused(copy)
    (copy / name).write_bytes(whole.replace(b'"', b"'", 1) if b'"' in whole else whole[:-1] + b"\x07")
    assert "truncated" in refused(copy)
    (copy / name).unlink()
    line = refused(copy)
    assert "is not a trust package (it has no package.json)" in line if name == "package.json" else "is missing" in line


@pytest.mark.parametrize("name", ["model.pkl", "trust/weights.pt", "pytorch_model.bin", "hook.py", "deep/er/x.json"])
def test_a_file_that_no_package_has_is_refused_by_name(copy: Path, name: str):
    (copy / name).parent.mkdir(parents=True, exist_ok=True)
    (copy / name).write_bytes(pickle.dumps({"a": 1}))
    edited(copy, lambda content: content["files"].update({name: {"bytes": 1, "sha256": "0"}}))
    line = refused(copy)
    assert f"holds {name}, which no trust package has" in line and "nothing was read" in line


def test_a_link_to_nowhere_is_refused_by_name(copy: Path):
    (copy / "away").symlink_to("/nowhere")
    assert "holds away" in refused(copy)


def test_a_first_cut_is_written_and_read_with_its_rows(tmp_path: Path):
    made = make_package(tmp_path, answer_words=40)
    copy = shutil.copytree(made.uri, tmp_path / "copy")
    found = load(copy)
    _, rows = first_of(tmp_path / "again", LinearProbe(*parts_of(made)), 40)
    told = read_held_out(found)
    assert found.digest == made.digest and found.description.cascade == made.description.cascade
    assert np.allclose(told.first_M, rows.first_M, atol=1e-6) and np.isnan(told.full_M).any()
    assert np.allclose(told.full_M, rows.full_M, atol=1e-6, equal_nan=True)
    assert np.array_equal(told.output_tokens_M, rows.output_tokens_M) and set(told.prompt_tokens_M) == {20}
    assert set(found.reference()) == {"output_last"}
    assert set(found.reference(["prompt_last"])) == {"output_last", "prompt_last"}
    assert find_first_cut(told, keep=0.1)["threshold"] == pytest.approx(
        found.description.cascade.cut["threshold"], abs=1e-6
    )
    assert np.array_equal(
        load_fitted(found.functions["cascade"]).weight_D, load_fitted(made.functions["cascade"]).weight_D
    )
    (copy / "cascade.parquet").unlink()
    assert "cascade.parquet is missing" in refused(copy)
    edited(copy, lambda content: content["files"].pop("cascade.parquet"))
    assert "names no cascade.parquet" in refused(copy)
    edited(copy, lambda content: content["description"].update(cascade=None))
    assert "its description was changed after the export" in refused(copy) or "is not named" in refused(copy)
    bare = make_package(tmp_path / "bare")
    with pytest.raises(PackageError, match="holds no first cut, so that a filter cannot have a cascade"):
        read_held_out(bare)


READER = {"reads_given": True, "backend": "transformers"}
SERVER = {"backend": "endpoint", "endpoint": ServedConfig(model="m"), "states": ()}


@pytest.mark.parametrize(
    ("ask", "why", "can_run_again"),
    [
        ({}, r"kept no state of the last prompt token, or .*\(`curate export-trust` says which\)", True),
        (READER, "its model reads answers that are there before the prompt is read", False),
        (SERVER, "a server answers, and keeps no state of a prompt", False),
    ],
)
def test_a_cascade_is_refused_with_what_can_be_done(package: TrustPackage, ask: dict, why: str, can_run_again: bool):
    changed = package.description.ask.model_copy(update=ask)
    described = package.description.model_copy(update={"ask": changed, "cascade": None})
    with pytest.raises(PackageError, match=why) as refused_by:
        read_held_out(replace(package, description=described))
    assert "; leave cascade out" in str(refused_by.value)
    assert ("run again with teacher.states" in str(refused_by.value)) == can_run_again


def parts_of(package: TrustPackage) -> tuple:
    trust = load_fitted(package.trust)
    return trust.weight_D, trust.bias, trust.inputs, {}


def test_the_page_for_people_may_change(copy: Path, package: TrustPackage):
    (copy / "README.md").write_text("ours")
    (copy / ".gitattributes").write_text("*.safetensors filter=lfs")
    assert load(copy).digest == package.digest


def test_other_formats_and_descriptions_are_refused(copy: Path, tmp_path: Path):
    assert "is not a trust package" in refused(tmp_path / "nowhere")
    assert "is not a trust package" in refused("s" * 10)
    assert "ftp" in refused("ftp://host/package")
    edited(copy, lambda content: content["description"].update(seed=4))
    assert "its description was changed after the export" in refused(copy)
    edited(copy, lambda content: content["description"].update(seed=3, mood="fine"))
    assert "description.mood: Extra inputs are not permitted" in refused(copy)
    edited(copy, lambda content: content.update(format=3))
    assert "has the format 3, and this version reads format 2" in refused(copy)
    edited(copy, lambda content: content.pop("format"))
    assert "truncated, or no package's" in refused(copy)
    (copy / "package.json").write_text("[1]")
    assert "truncated, or no package's" in refused(copy)


def test_a_file_that_the_package_does_not_name_is_refused(copy: Path):
    edited(copy, lambda content: content["files"].pop("calibration.parquet"))
    assert "calibration.parquet is not named in package.json" in refused(copy)
    edited(copy, lambda content: content["files"].pop("trust/weights.safetensors"))
    assert "names no trust/weights.safetensors" in refused(copy)


def unfit(package: TrustPackage, teacher: ModelRef | None = None) -> str:
    with pytest.raises(PackageError) as caught:
        check_fits(package) if teacher is None else check_teacher(package, teacher)
    return str(caught.value)


def test_a_model_for_a_package_of_a_backend_without_weights_is_refused(package: TrustPackage):
    check_fits(package)
    line = unfit(package, teacher=ModelRef(base="Qwen/X", revision="abc"))
    assert "which has no weights, and is given the model Qwen/X at abc" in line


def test_another_version_of_a_domain_is_noticed(package: TrustPackage, monkeypatch: pytest.MonkeyPatch):
    prompt, parse = Math.prompt, Math.parse
    monkeypatch.setattr(Math, "prompt", lambda self, example, **more: prompt(self, example, **more) + " Now:")
    line = unfit(package)
    assert "is another version than the package's" in line
    assert "prompt of stored question 0 is" in line and "Now:' here" in line and "0.1.0" in line
    monkeypatch.setattr(Math, "prompt", prompt)
    monkeypatch.setattr(Math, "parse", lambda self, completion, example: f"{parse(self, completion, example)}.0")
    assert "label of stored question 0 is '1.0' here, and '1' in the package" in unfit(package)
    monkeypatch.setattr(Math, "parse", lambda self, completion: None)
    assert "domain_failed: TypeError" in unfit(package)


def test_a_teacher_is_known_by_its_content(tiny_model: ModelRef, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(digest, "SMALL_BYTES", 1 << 12)  # weights count as large
    monkeypatch.setattr(digest, "SAMPLE_BYTES", 1 << 9)
    package = of_model(tmp_path / "package", tiny_model)
    moved = shutil.copytree(tiny_model.base, tmp_path / "moved")
    (moved / "README.md").write_text("a card")
    (moved / "training.json").write_text("{}")
    assert compute_model_digest(moved) == package.description.teacher_digests["base"]
    check_teacher(package, tiny_model)
    assert find_teacher(package) == tiny_model and find_teacher(package, str(moved)).base == str(moved)
    weights = bytearray((moved / "model.safetensors").read_bytes())
    weights[-1] ^= 1
    (moved / "model.safetensors").write_bytes(weights)
    line = unfit(package, teacher=ModelRef(base=str(moved)))
    assert f"{tiny_model.base} with the digest {package.description.teacher_digests['base']}" in line
    assert f"{moved} with the digest {compute_model_digest(moved)}" in line
    adapted = ModelRef(base=tiny_model.base, adapter=str(moved))
    assert f"with the adapter {moved}" in unfit(package, teacher=adapted)
    gone = of_model(tmp_path / "gone", ModelRef(base=str(moved)))
    shutil.rmtree(moved)
    with pytest.raises(PackageError, match="the base of its teacher is not at"):
        find_teacher(gone)


def test_a_teacher_on_the_hub_is_known_by_its_commit(tmp_path: Path):
    package = of_model(tmp_path / "package", ModelRef(base="Qwen/Qwen3-4B-Base", revision="1a"))
    check_teacher(package, ModelRef(base="Qwen/Qwen3-4B-Base", revision="1a"))
    line = unfit(package, teacher=ModelRef(base="Qwen/Qwen3-4B-Base", revision="2b"))
    assert "its teacher is Qwen/Qwen3-4B-Base at 1a, and it is given Qwen/Qwen3-4B-Base at 2b" in line


def test_examples_that_are_no_json_are_not_stored():
    own = get_domain(DomainConfig(name="math"))
    rows = [({"problem": row["problem"], "difficulty": float("nan")}, "x", None) for row in sums(2)]
    assert collect_questions(own, rows) == ()
