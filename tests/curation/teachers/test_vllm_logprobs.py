"""What the tap of vLLM keeps of its tokens' numbers, step by step, against lists of all of them; vLLM is not needed."""

import numpy as np
import pytest
import torch

from curation.teachers.vllm_logprobs import Logprobs, Positions

RING, PROMPT = 6, 10


@pytest.mark.parametrize("num_first", [0, 1, 3])
def test_sum_first_least_and_last_of_answers_that_are_cut_at_their_end(num_first: int):
    """Drawn answers (a token a step, some cut off by a stop string) and scored ones (many tokens a step) in a batch."""
    rng = np.random.default_rng(0)
    for _ in range(50):
        lengths = rng.integers(0, 9, 5).tolist()
        scored = rng.random(5) < 0.4
        drawn = [
            length + (1 if is_scored else int(rng.integers(1, 4)))
            for length, is_scored in zip(lengths, scored, strict=True)
        ]
        # Log-probability, margin, negative entropy of each token.
        rows = [(np.array([-1, 1, -1]) * rng.exponential(size=(num, 3))).astype(np.float32).tolist() for num in drawn]
        for row, is_scored in zip(rows, scored, strict=True):
            if is_scored:
                row[-1] = [0.0] * 3  # no token follows the last one that is scored
        kept = Logprobs(RING, num_first, torch.device("cpu"))
        kept.grow(3)
        kept.grow(8)
        slots = rng.permutation(8)[:5].tolist()
        kept.clear(torch.tensor(slots))
        at = [0] * 5
        while any(place < len(row) for place, row in zip(at, rows, strict=True)):
            entries, values = [], []
            for row in rng.permutation(5).tolist():
                size = int(rng.integers(1, 5)) if scored[row] else 1
                for place in range(at[row], min(at[row] + size, len(rows[row]))):
                    follows = not scored[row] or place + 1 < len(rows[row])
                    entries.append((0, slots[row], PROMPT - 1 + place, PROMPT, 0 if follows else -1))
                    values.append(rows[row][place])
                    at[row] = place + 1
            positions = Positions(entries, RING, kept.num_first, [], torch.device("cpu"))
            kept.add(positions, torch.tensor(values))
        newest_N = torch.tensor([PROMPT - 2 + len(row) for row in rows])
        position_NR = newest_N[:, None] - (newest_N[:, None] - torch.arange(RING)) % RING
        last_N = torch.tensor([PROMPT - 1 + length for length in lengths])
        found = kept.collect(torch.tensor(slots), position_NR, last_N, lengths)
        for length, row, summary in zip(lengths, rows, found, strict=True):
            logprobs, margins, negentropies = ([token[of] for token in row[:length]] for of in range(3))
            assert summary.logprob == pytest.approx(sum(logprobs), abs=1e-5)
            if length == 0:
                assert summary[1:] == ([], None, None)
                continue
            tokens = summary.logprobs
            num_kept = max(1, num_first)
            assert tokens[:num_kept] == logprobs[:num_kept] and len(tokens) <= num_kept + 2
            assert (min(tokens), tokens[0], tokens[-1]) == (min(logprobs), logprobs[0], logprobs[-1])
            for of_tokens, values in ((summary.margins, margins), (summary.negentropies, negentropies)):
                assert of_tokens[1:] == (min(values), values[0], values[-1])
                assert of_tokens.mean == pytest.approx(np.mean(values), abs=1e-5)
