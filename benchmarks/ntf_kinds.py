"""The kinds of trust functions beside scikit-learn's models: part 2 of ``benchmarks.ntf_fit``."""

import statistics
import time
import warnings
from typing import Any, NamedTuple

import numpy as np

from benchmarks.machine import Busy, quiet
from benchmarks.ntf_fit import HELD_OUT, SEED, SMALL, Logits
from benchmarks.pairs import in_turn, spread
from curation.config import TrustConfig
from curation.metrics import compute_auc_value
from curation.trust.parts import FIT
from train.trust import compute_logits_at, fit_rows
from train.trust_loop import LabelledRows


class Fit(NamedTuple):
    """The result of a fit of one kind."""

    seconds: float
    cpu_seconds: float
    others: float
    raw_H: Logits
    """Logits of the held-out rows, which no fit saw."""


def beside_sklearn(rows: LabelledRows, epochs: int, num_turns: int) -> None:
    """Do part 2."""
    from sklearn.decomposition import PCA
    from sklearn.ensemble import HistGradientBoostingClassifier
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression
    from sklearn.neural_network import MLPClassifier
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    warnings.filterwarnings("ignore", category=ConvergenceWarning)  # the MLP's, after the epochs that it is given
    fit_F, held_H = rows.places(FIT), np.flatnonzero(rows.part_N == HELD_OUT)
    batch_size = 256
    config = TrustConfig.model_validate(
        {
            **SMALL,
            "batch_size": batch_size,
            "learning_rate": 1e-3,
            "class_weight": 0,
            "max_steps": epochs * -(-len(fit_F) // batch_size),
            "patience": None,
        }
    )

    def our(kind: str) -> Fit:
        busy, begun, cpu_begun = Busy(), time.perf_counter(), time.process_time()
        trust = fit_rows(kind, rows, config, seed=SEED, origin={"seed": SEED})
        seconds, cpu_seconds = time.perf_counter() - begun, time.process_time() - cpu_begun
        return Fit(seconds, cpu_seconds, busy.others(), compute_logits_at(trust, rows, held_H))

    def their(*steps: Any, dtype: Any = np.float32) -> Fit:
        busy, begun, cpu_begun = Busy(), time.perf_counter(), time.process_time()
        model = make_pipeline(*steps).fit(rows.hidden_ND[fit_F].astype(dtype), rows.correct_N[fit_F])
        seconds, cpu_seconds, others = time.perf_counter() - begun, time.process_time() - cpu_begun, busy.others()
        p_H = model.predict_proba(rows.hidden_ND[held_H].astype(dtype))[:, 1].astype(np.float64)
        return Fit(seconds, cpu_seconds, others, np.log(p_H) - np.log1p(-p_H))

    def trees() -> Any:
        return HistGradientBoostingClassifier(early_stopping=False, random_state=SEED)

    width = SMALL["width"]
    mlp = (2 * width, 2 * width)  # as many weights as 2 blocks of 3 matrices of width x 2 width
    found = in_turn(
        {
            "neural": lambda: our("neural"),
            "MLPClassifier": lambda: their(
                StandardScaler(),
                MLPClassifier(
                    mlp, batch_size=batch_size, max_iter=epochs, n_iter_no_change=epochs, random_state=SEED, alpha=1e-4
                ),
            ),
            "linear_probe": lambda: our("linear_probe"),
            "LogisticRegression": lambda: their(StandardScaler(), LogisticRegression(max_iter=1000)),
            "boosted_trees": lambda: our("boosted_trees"),
            "HGB, all": lambda: their(trees()),
            "HGB, PCA": lambda: their(PCA(64, svd_solver="covariance_eigh"), trees(), dtype=np.float64),
        },
        num_turns,
    )
    print("\n| ours | peer | same? | ours / peer, s | CPU s | ratio | of CPU time | turns | AUC, ours / peer |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    for kind, peer, what, same in (
        ("neural", "MLPClassifier", f"MLPClassifier {mlp}", False),
        ("linear_probe", "LogisticRegression", "StandardScaler, LogisticRegression", True),
        ("boosted_trees", "HGB, PCA", "PCA(64), HistGradientBoostingClassifier", True),
        ("boosted_trees", "HGB, all", "HistGradientBoostingClassifier on all numbers", False),
    ):
        turns = quiet(found[kind], found[peer])
        mine, theirs = turns.ours, turns.peers
        apart = float(np.abs(mine[0].raw_H - theirs[0].raw_H).max())
        assert not same or apart < 1e-2, f"{kind}: logits differ by {apart}"
        alike = f"as many weights and epochs ({epochs})" if kind == "neural" else "as many trees, of other inputs"
        cells = (
            kind,
            what,
            f"yes, logits within {apart:.0e}" if same else f"no: {alike}",
            " / ".join(f"{statistics.median(fit.seconds for fit in side):.1f}" for side in (mine, theirs)),
            " / ".join(f"{statistics.median(fit.cpu_seconds for fit in side):.1f}" for side in (mine, theirs)),
            spread(turns.ratios(lambda fit: fit.seconds), ".2f"),
            spread(turns.ratios(lambda fit: fit.cpu_seconds), ".2f"),
            turns.words,
            " / ".join(f"{compute_auc_value(side[0].raw_H, rows.correct_N[held_H]):.4f}" for side in (mine, theirs)),
        )
        print(f"| {' | '.join(cells)} |", flush=True)
