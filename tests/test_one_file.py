"""The engine against the method written once more: ``examples/one_file.py``, which imports none of it."""

import ast
from functools import partial

import chess
import numpy as np
import pytest
import torch

from curation.config import DecodingConfig, DomainConfig, ModelConfig, TeacherConfig, TrustConfig
from curation.domains import get_domain
from curation.domains.given import as_asked
from curation.models import resolve
from curation.selection import Candidates
from curation.selection.risk import calibrate
from curation.selection.top_n import TopN
from curation.signals import label_request
from curation.teachers import load_teacher
from curation.trust.neural import Architecture, NeuralTrust, NeuralTrustNet
from examples import one_file
from tests.conftest import ROOT
from train import trust_loop
from train.trust_loop import LabelledRows, fit_arrays

pytestmark = pytest.mark.long

BASE = ROOT / "examples" / "bases" / "teacher"
MATE = get_domain(DomainConfig(name="chess_mate"))
STEPWISE = DecodingConfig(constrained="stepwise")


@pytest.fixture(scope="module")
def puzzles():
    return one_file.pq.read_table(ROOT / "examples" / "data" / "puzzles.parquet").slice(0, 800).to_pylist()


@pytest.fixture(scope="module")
def rows(puzzles, tmp_path_factory):
    path = tmp_path_factory.mktemp("rows") / "puzzles.parquet"
    one_file.pq.write_table(one_file.pq.read_table(ROOT / "examples" / "data" / "puzzles.parquet").slice(0, 800), path)
    return one_file.read_rows(path)


@pytest.fixture(scope="module")
def examples(puzzles):
    """The same rows as the engine's domain reads them."""
    found = []
    for raw in puzzles:
        example = MATE.read({"fen": raw["fen"], "moves": raw["moves"]})
        board = chess.Board(example["fen"])
        is_one_move = len(raw["moves"].split()) == 2
        if is_one_move and any("#" in board.san(move) for move in board.legal_moves):
            found.append(example)
    return found


def test_it_is_short_and_needs_no_engine():
    source = (ROOT / "examples" / "one_file.py").read_text()
    assert len(source.splitlines()) <= 300
    imports = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Import | ast.ImportFrom)]
    names = {alias.name for node in imports if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module for node in imports if isinstance(node, ast.ImportFrom)}
    assert not {name.partition(".")[0] for name in names} & {"curation", "train", "tune", "ray"}


def test_prompts_answers_and_gold_labels_are_the_engines(rows, examples):
    assert len(rows) > 100
    for row, example in zip(rows, examples, strict=True):
        assert row.prompt == MATE.question(example)
        assert tuple(row.moves) == MATE.candidates(example)
        assert " ".join(move.strip() for move in row.mates) == MATE.gold({"fen": example["fen"]})


def test_labels_states_and_confidence_are_the_teachers(rows, examples):
    answers = one_file.Model(BASE).answer(rows[:80])
    ref = resolve(str(BASE))
    config = TeacherConfig(
        backend="transformers", model=ModelConfig(path=ref.base), states=("output_last",), state_dtype="float32"
    )
    domain = as_asked(MATE, STEPWISE)
    requests = [label_request(domain, place, example) for place, example in enumerate(examples[:80])]
    batches = load_teacher(config, ref).label(requests, STEPWISE, seed=0)
    found = sorted((row for batch in batches for row in batch.to_pylist()), key=lambda row: row["row_id"])
    assert [row["completion"] for row in found] == answers.labels
    assert len(set(answers.labels)) > 10
    np.testing.assert_allclose([row["state_output_last"] for row in found], answers.states_ND, atol=1e-5)
    np.testing.assert_allclose([row["mean_logprob"] for row in found], answers.logprob_N, atol=1e-5)
    golds = [" ".join(move.strip() for move in row.mates) for row in rows[:80]]
    right = [MATE.is_correct(label.strip(), gold) for label, gold in zip(answers.labels, golds, strict=True)]
    assert right == answers.right_N.tolist()


@pytest.fixture(scope="module")
def labelled():
    """States that tell right labels from wrong ones, and how the rows are divided."""
    rng = np.random.default_rng(7)
    right_N = rng.random(1_000) < 0.4
    states_ND = rng.normal(size=(1_000, 24)).astype(np.float32)
    states_ND[:, :3] += right_N[:, None]
    return states_ND, right_N, rng.random(1_000) < 0.2


@pytest.fixture(scope="module")
def fitted(labelled):
    states_ND, right_N, validates_N = labelled
    return one_file.fit_trust(torch.from_numpy(states_ND), right_N, validates_N, 5)


def test_a_fit_gives_the_same_trust(labelled, fitted, monkeypatch):
    """The whole fit, from the first weights to the epoch that is kept."""
    states_ND, right_N, validates_N = labelled

    def seed_of(seed, purpose):
        """Seeds as the file counts them, in place of the engine's hashes."""
        return seed + int(purpose.split()[2] if "step" in purpose else 0)

    monkeypatch.setattr(trust_loop, "derive", seed_of)
    epoch = -(-int((~validates_N).sum()) // 64)
    config = TrustConfig(
        kind="neural", width=128, depth=2, learning_rate=1e-3, batch_size=64, max_steps=20 * epoch, patience=20 * epoch
    )
    rows = LabelledRows(
        hidden_ND=states_ND,
        correct_N=right_N,
        part_N=validates_N.astype(np.int8),
        sizes=(24,),
        row_ids_N=np.arange(1_000),
        numbers_NK=np.empty((1_000, 0)),
    )
    found = fit_arrays(
        rows, config, partial(NeuralTrustNet, Architecture.of(config, 24)), NeuralTrust, seed=5, origin={}
    )
    assert len(found.fit["validation_aucs"]) == 20 and max(found.fit["validation_aucs"]) > 0.8
    with torch.inference_mode():
        logit_N = found.net(torch.from_numpy(states_ND)).numpy()
    own_N = one_file.score(fitted, torch.from_numpy(states_ND))
    np.testing.assert_allclose(
        torch.sigmoid(torch.from_numpy(own_N)), torch.sigmoid(torch.from_numpy(logit_N)), atol=1e-6
    )


def test_the_same_rows_are_selected(labelled, fitted):
    score_N = one_file.score(fitted, torch.from_numpy(labelled[0]))
    for n in (1, 50, 999):
        cut = TopN().cut(Candidates(row_ids_N=np.arange(1_000), raw_score_N=score_N), n, seed=0)
        assert cut.row_ids_n.tolist() == one_file.select(score_N, n).tolist()


@pytest.mark.parametrize("alpha", [0.02, 0.2, 0.35, 0.7])
@pytest.mark.parametrize("num_calibration", [40, 300])
def test_the_same_cut_is_certified(labelled, fitted, alpha, num_calibration):
    states_ND, right_N, _ = labelled
    score_N = one_file.score(fitted, torch.from_numpy(states_ND))
    some_M, rest_N = np.arange(num_calibration), np.arange(num_calibration, 1_000)
    cut = one_file.certify(score_N[some_M], right_N[some_M], score_N[rest_N], alpha, 0.1)
    engines = calibrate(score_N[some_M], right_N[some_M], score_N[rest_N], alpha=alpha, delta=0.1).threshold
    assert cut == (None if engines is None else pytest.approx(engines, abs=1e-6))
    assert (cut is None) == (alpha == 0.02 or (num_calibration == 40 and alpha < 0.7))
