"""Arrow schemas of all tables, with comments on their columns; further columns of labels: ``curation.label_columns``.

``row_id`` is int64 everywhere: ``(file index << 40) | row in file``, or the user's own unique integers.
"""

from collections.abc import Iterable, Sequence
from typing import get_args

import pyarrow as pa

from curation.label_columns import DOMAIN_NUMBERS, LabelNumber, is_from_domain, is_given

FILE_SHIFT = 40
"""Number of low bits of ``row_id`` that hold the row's position in its file; the higher bits hold the file's index."""

ROW_ID = pa.field("row_id", pa.int64(), nullable=False)
GOLD = pa.field("gold", pa.string())
ERROR = pa.field("error", pa.string())
"""Error of the row as ``kind: detail``; null for a row without error."""

CLUSTER = pa.field("row_cluster", pa.int64())
"""Cluster of the row (null: its own) in tables of examples and grades, if ``splits.group`` is set."""


def make_examples_schema(columns: pa.Schema, *, gold: bool, clustered: bool = False) -> pa.Schema:
    """Return the schema of a split's rows: the domain's columns, ``GOLD`` if ``gold``, ``CLUSTER`` and ``ERROR``."""
    return pa.schema([ROW_ID, *columns, *([GOLD] if gold else []), *([CLUSTER] if clustered else []), ERROR])


AUDIT = pa.schema([ROW_ID, GOLD, pa.field("solution", pa.string()), pa.field("solution_error", pa.string())])
"""Gold labels of pool rows, and the rows' worked solutions as completions; a solution is null if there is none, or if
it is not used (``solution_error``, ``kind: detail``). Grading reads this table, and so do the stages that find long
rows, make rollouts, select and report."""


def get_state_column(state: str) -> str:
    """Return the column of a hidden state by its name, e.g. ``output_last``."""
    return f"state_{state}"


NUMBERS: tuple[str, ...] = get_args(LabelNumber)
"""Columns of :func:`make_completions_schema` with one number a row. A trust function may read them beside states."""

TOKEN_LOGPROBS = "token_logprobs"
"""A column with several numbers a row for trust functions, present if ``teacher.token_logprobs`` is set."""


def is_number(column: str) -> bool:
    """Return whether a labels column has one number a row for trust functions: of ``NUMBERS``, or of the domain."""
    return column in NUMBERS or is_from_domain(column)


_TYPES = {
    "num_options": pa.int32(),
    "num_prompt_tokens": pa.int32(),
    "num_output_tokens": pa.int32(),
    "truncated": pa.bool_(),
}
"""Types of the columns of ``NUMBERS`` that are not float32."""


def get_input_column(name: str) -> str:
    """Return the column of a trust function's input: a state, a number (:func:`is_number`), or ``TOKEN_LOGPROBS``."""
    return name if name == TOKEN_LOGPROBS or is_number(name) else get_state_column(name)


def describe_mend(column: str) -> str:
    """Return the remedy if a labels table lacks a column that a trust function reads."""
    if column == TOKEN_LOGPROBS:
        return "set teacher.token_logprobs"
    if is_given(column):
        return "name its column of the source under teacher.confidence"
    if column in DOMAIN_NUMBERS:
        return DOMAIN_NUMBERS[column]
    return "label again" if column in NUMBERS else "add its state to teacher.states"


GIVEN_TYPE = pa.float32()
"""Type of the numbers that follow from the domain."""


def make_completions_schema(
    states: Sequence[str], state_dtype: str, state_size: int, num_token_logprobs: int = 0
) -> pa.Schema:
    """Return the output of a teacher, one row per request.

    ``completion`` text of the answer, stop token or string cut.

    ``mean_logprob``, ``min_logprob``, ``first_logprob``, ``last_logprob`` natural-log probability of the answer's
    tokens (without the stop token) under the teacher: their mean, and that of the least likely, the first and the last
    one; of options the chosen one's. Null for an empty answer.

    ``margin`` and ``negentropy`` how sure the teacher is, in nats, larger is surer. Of options: the score of the
    likeliest less that of the next one (null if there is one option), and minus the entropy of the softmax over all
    scores, by the scores that chose: ``option_logprobs``, or their means by token (``decoding.normalise_options``), or
    these less the options' baselines (``Request.baselines``; never of ``option_logprobs``). An
    option that came with its row, and is read, takes the place of the likeliest in all of these. Of a generated
    answer: the gap between the two largest log-probabilities of the whole vocabulary, and minus its
    entropy, as means over the tokens of ``mean_logprob``, by the same distribution as that: the model's own, before
    penalty, temperature and limits. Null for an empty answer.

    ``option_share``, ``option_lead``, ``num_options`` the probability of the likeliest option by that softmax, its
    score less the mean score of all options, and their number; null for a generated answer. ``min_margin``,
    ``first_margin``, ``last_margin``, ``min_negentropy``, ``first_negentropy``, ``last_negentropy`` the least, first
    and last of the numbers whose means are ``margin`` and ``negentropy``; null for options and for an empty answer.

    Of options in pairs (``Request.in_pairs``), yes and no of a question each, every set of answers counts as an option,
    whose probability is the product of those of its yes and no; ``num_options`` is the number of yes, and the four
    log-probabilities and ``token_logprobs`` have, in place of a token, each question's answer among the two.

    ``option_logprobs`` the sum of each option's token log-probabilities given the prompt, without an end token, in the
    order of the request's options (the completion is then the chosen option), null if the answer was generated, also
    along options (``decoding.constrained: stepwise``). ``token_logprobs`` (if any are kept) the natural-log
    probabilities of the answer's first ``num_token_logprobs`` tokens, 0 beyond its end.

    ``num_prompt_tokens``, ``num_output_tokens`` (without the stop token); ``truncated`` the length cap ended the
    answer.

    ``state_<position>`` last-layer hidden state after the final norm, at the last prompt token (``prompt_last``), the
    first answer token (``output_first``), the last answer token before the stop token (``output_last``) or averaged
    over the answer (``output_mean``); for an empty answer the positions of the answer hold the state at the last prompt
    token; ``state_layer<L>_<position>`` the same of the output of block L, 1 the first, before any final norm;
    ``state_option<R>_output_last`` that of the last token of the R-th likeliest option, zeros if there are fewer.
    """
    value = {"float16": pa.float16(), "float32": pa.float32()}[state_dtype]
    return pa.schema(
        [
            ROW_ID,
            pa.field("completion", pa.string()),
            pa.field("option_logprobs", pa.list_(pa.float32())),
            *([pa.field(TOKEN_LOGPROBS, pa.list_(pa.float16(), num_token_logprobs))] if num_token_logprobs else []),
            *(pa.field(name, _TYPES.get(name, pa.float32())) for name in NUMBERS),
            *(pa.field(get_state_column(state), pa.list_(value, state_size)) for state in states),
            ERROR,
        ]
    )


def make_labels_schema(
    states: Sequence[str],
    state_dtype: str,
    state_size: int,
    num_token_logprobs: int = 0,
    added: Iterable[pa.Field] = (),
) -> pa.Schema:
    """Return :func:`make_completions_schema` with ``label`` (null: unparsed), and ``added`` columns of some domains."""
    *fields, error = make_completions_schema(states, state_dtype, state_size, num_token_logprobs)
    return pa.schema([*fields[:2], pa.field("label", pa.string()), *fields[2:], *added, error])


DROPPED = "dropped"
"""Column of a labels table that was made with a gate (``stages.asking``): whether the teacher was not asked for an
answer, so that completion, label, states and error are null. No arm selects a dropped row."""


def make_kept_schema(schema: pa.Schema, states: Sequence[str]) -> pa.Schema:
    """Return the schema of labels scored while they were made, with the named states for a sample of rows only.

    States are lists of variable length, null for other rows: Lance stores a null of a fixed-size list in full.
    """
    kept = {get_state_column(state) for state in states}
    return pa.schema(
        [
            field.with_type(pa.list_(field.type.value_type)) if field.name in kept else field
            for field in schema
            if field.name in kept or not is_state(field.name)
        ]
    )


def is_state(column: str) -> bool:
    """Return whether a column of a labels table holds hidden states."""
    return column.startswith(get_state_column(""))


def get_raw_column(function: str) -> str:
    """Return the column of a fitted function's raw score, which ranks rows (a float32 sigmoid saturates at 1)."""
    return f"{_escape_name(function)}_raw"


def trust_column(function: str) -> str:
    """Return the column of a fitted trust function's score in [0, 1], larger is more reliable."""
    return f"{_escape_name(function)}_trust"


def _escape_name(name: str) -> str:
    """Return a name as a part of a column's name; in Lance, a dot would access a nested field."""
    return name.replace(".", "_").replace(":", "_")


SIGNAL = pa.schema([ROW_ID, pa.field("value", pa.float32()), ERROR])
"""One number per row (or null) from a pass beyond labelling; later a column of the labels with the signal's name."""

GRADES = pa.schema(
    [
        ROW_ID,
        pa.field("correct", pa.bool_(), nullable=False),
        pa.field("judged", pa.bool_(), nullable=False),  # right by the judge model, wrong by the domain's rule
        pa.field("problem", pa.string()),  # ``kind: detail``: why the rule could not decide; then it is wrong
        # A hash of the question (``domains.identity.question_of``), equal for rows that ask the same one. Null where
        # the domain cannot say; the row is then a question of its own.
        pa.field("question", pa.int64()),
    ]
)
"""Which weak labels are right: rows labelled without error whose gold label is known, ascending by row id. Only the
select and report stages read the pool's grades."""


def make_grades_schema(of: pa.Schema) -> pa.Schema:
    """Return ``GRADES``, with ``CLUSTER`` where the table of the examples, or of the grades before, has it."""
    return GRADES.append(CLUSTER) if CLUSTER.name in of.names else GRADES


TOO_LONG = pa.schema(
    [
        ROW_ID,
        pa.field("weak", pa.bool_(), nullable=False),  # prompt, weak completion and end token exceed the limit
        pa.field("gold", pa.bool_(), nullable=False),  # the same with the completion that states the gold label
    ]
)
"""Labelled rows that the student cannot be trained on, ascending by row id; no arm selects one of them."""

REPEATS = pa.schema([ROW_ID, pa.field("question", pa.int64(), nullable=False)])
"""Pool rows whose question another pool row asks too, ascending by row id; ``question`` as in ``GRADES``."""

LEFT_OUT = pa.schema([ROW_ID, pa.field("error", pa.string(), nullable=False)])
"""Rows that a training or a selection left out, ascending by row id, with the reason."""

ROLLOUTS = pa.schema(
    [
        ROW_ID,
        pa.field("completion", pa.string()),  # the first sample whose label is right; null if none was
        pa.field("num_samples", pa.int32()),  # number of samples drawn, the right one included
        ERROR,
    ]
)
"""Further samples of the teacher for rows whose weak label is wrong; the first one that gold grades right is kept."""

SELECTION = pa.schema(
    [
        ROW_ID,
        pa.field("arm", pa.string()),
        pa.field("rank", pa.int64()),  # 0 is the most trusted; the order of the draw for uniform arms
        pa.field("trust", pa.float32()),  # the arm's own score in [0, 1]; for a uniform arm the draw
        pa.field("prompt", pa.string()),
        pa.field("completion", pa.string()),
        pa.field("label", pa.string()),
        pa.field("label_source", pa.string()),  # weak or gold
        pa.field("completion_source", pa.string()),  # origin of the completion: weak (the teacher's weak label),
        # answer (the domain's sentence for the label), solution (the dataset's), sample (a further sample)
        pa.field("teacher", pa.string()),  # base, revision and adapter of the labelling model, as JSON
        pa.field("generation", pa.int32()),
    ]
)
"""The rows an arm selected, ready for TRL (``prompt``, ``completion``), with their lineage."""

PREFERENCES = pa.schema(
    [
        ROW_ID,
        pa.field("prompt", pa.string()),  # the row's own prompt, not the teacher's question about the two answers
        pa.field("chosen", pa.string()),  # the answer at the row's label, weak or gold
        pa.field("rejected", pa.string()),
        *(SELECTION.field(name) for name in ("trust", "rank", "arm", "label_source", "teacher", "generation")),
    ]
)
"""The pairs of answers that an arm selected, ready for TRL (``prompt``, ``chosen``, ``rejected``), by rank."""
