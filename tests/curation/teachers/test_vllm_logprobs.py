"""What the tap of vLLM keeps of log-probabilities, step by step, against lists of all of them; vLLM is not needed."""

import numpy as np
import pytest
import torch

from curation.teachers.vllm_logprobs import Logprobs

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
        rows = [(-rng.exponential(size=num)).astype(np.float32).tolist() for num in drawn]
        for row, is_scored in zip(rows, scored, strict=True):
            if is_scored:
                row[-1] = 0.0  # no token follows the last one that is scored
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
                    entries.append((0, slots[row], PROMPT - 1 + place, PROMPT, 0))
                    values.append(rows[row][place])
                    at[row] = place + 1
            kept.add(entries, torch.tensor(entries).T, torch.tensor(values))
        newest_N = torch.tensor([PROMPT - 2 + len(row) for row in rows])
        position_NR = newest_N[:, None] - (newest_N[:, None] - torch.arange(RING)) % RING
        last_N = torch.tensor([PROMPT - 1 + length for length in lengths])
        sums, found = kept.collect(torch.tensor(slots), position_NR, last_N, lengths)
        for length, row, total, tokens in zip(lengths, rows, sums, found, strict=True):
            answer = row[:length]
            assert total == pytest.approx(sum(answer), abs=1e-5)
            if num_first == 0 or length == 0:
                assert tokens == []
            else:
                assert tokens[:num_first] == answer[:num_first] and len(tokens) <= num_first + 2
                assert (min(tokens), tokens[0], tokens[-1]) == (min(answer), answer[0], answer[-1])
