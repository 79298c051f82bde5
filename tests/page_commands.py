"""All commands of the pages, and where each is run: offline, against a local stand-in, or nowhere here, and why.

A command is a line of a shell block, each call of ``curate`` within such a line, and a whole call of ``curate`` in a
sentence. The changelog tells of the past, so its commands are left out.
"""

import re
from collections.abc import Iterator
from typing import NamedTuple

import click
from test_docs import PAGES, blocks, calls, spans, split

from curation.cli import main

OWN = "test_own_data_page.py::test_commands_of_other_pages_run_on_this_run"
"""Runs what can be given on the run of docs/own-data.md."""
STORE = "test_cluster_commands.py::test_commands_with_an_object_store_and_a_cluster"
"""Runs the commands of a run with students against a local S3 server and a local cluster with a dashboard."""

_OWN = """
    curate review draw RUN_DIR | curate review draw RUN_DIR --num 200 | curate review draw runs/my-run --num 200
    curate review export runs/my-run csv rows.csv | curate review import runs/my-run csv verdicts.csv
    curate review export runs/my-run label-studio t.json
    curate review result runs/my-run --alpha 0.1 | curate review result RUN_DIR
    curate clean OUT | curate clean RUN_DIR | curate doctor CONFIG | curate doctor [CONFIG] | curate doctor
    curate export-trust RUN_DIR -o DIR | curate export-trust runs/my-run -o trust
    curate export RUN_DIR -o DIR | curate export runs/my-run -o rows
    curate filter PACKAGE POOL -o OUT --keep 0.1
    curate filter packages/chess pool/ -o filtered --keep 50000
    curate filter packages/chess pool/ -o filtered --threshold 0.9 | curate filter filter.yaml
    curate init [CONFIG] | curate init my.yaml | curate init
    curate inspect OUT [STAGE]
    curate inspect RUN_DIR STAGE --where 'error IS NOT NULL' | curate inspect RUN_DIR gen-0/label-pool
    curate inspect RUN_DIR prepare/SPLIT --where 'error IS NOT NULL' | curate inspect TABLE
    curate inspect any/table.lance --where 'label IS NULL' --columns row_id,completion --rows 20
    curate inspect runs/my-run | curate inspect runs/my-run gen-0/label-pool | curate inspect runs/quickstart
    curate inspect runs/quickstart gen-0/label-pool --where 'mean_logprob > -0.5' --rows 5
    curate plan CONFIG | curate plan examples/quickstart.yaml --no-probe
    curate report CONFIG | curate run CONFIG | curate run RUN_DIR --redo STAGE
    curate run CONFIG --until gen-0/teacher
    curate run CONFIG --redo STAGE
    curate run examples/quickstart.yaml --set 'selection.arms=[naive, last_logprob, trust, ntf, ground_truth]'
    curate status CONFIG | curate status OUT | curate status runs/my-run | curate status runs/quickstart
    curate validate CONFIG | curate verify RUN_DIR | curate --help | curate COMMAND -h
"""
_PAGE_INIT = (
    "curate init --data examples/own_data/labelled.csv examples/own_data/unlabelled.csv "
    "--model examples/bases/sums_teacher"
)
PAGE = "test_own_data_page.py::test_the_page_leads_to_a_report_within_ten_minutes"
_PAGE = """
    curate validate examples/own_data/own.yaml | curate run examples/own_data/own.yaml
    curate status examples/own_data/own.yaml | curate review draw runs/own --num 200
    curate review export runs/own label-studio tasks.json
    curate inspect runs/own gen-0/label-pool --columns row_id,completion,label --rows 5
    curate export runs/own -o rows | curate export-trust runs/own -o trust
    curate filter trust examples/own_data/unlabelled.csv -o filtered --keep 0.1
"""
CLASSIFIER = "test_classifier_page.py::test_the_first_commands_of_the_page_lead_to_a_report_a_selection_and_a_filter"
_CLASSIFIER = """
    curate validate tickets.yaml | curate plan tickets.yaml | curate run tickets.yaml
    curate export-trust runs/tickets -o tickets-trust
    curate filter tickets-trust later.csv -o tickets-kept --keep 0.1
"""
_GIVEN_RUN = "test_given_run.py::test_labels_are_the_columns_and_nothing_is_asked"
_GIVEN_CHECK = "test_given_run.py::test_plan_status_and_validate_say_that_no_model_is_asked"
_GIVEN_FILTER = "test_given_run.py::test_a_package_filters_files_that_have_the_columns"
_SERVED = "test_endpoint_run.py::test_the_page_as_it_stands"
_STORE = """
    ray get-auth-token --generate
    aws s3 cp my.yaml s3://my-bucket/my.yaml
    ray job submit --address http://localhost:8265 --no-wait -- curate run s3://my-bucket/my.yaml
    curate run s3://my-bucket/my.yaml | curate run s3://my-bucket/my.yaml --address auto
    curate status s3://bucket/my-run
    curate doctor CONFIG --address ...
    curate export-student runs/my-run -o student | curate export-student RUN_DIR -o DIR
    curate export-student s3://bucket/my-run --arm naive --generation 0 -o s3://bucket/models/naive
    curate export-trust runs/my-run --generation 0 -o s3://bucket/trust/mine
    curate filter packages/chess 's3://bucket/pool/*.parquet' -o s3://bucket/filtered --keep 0.1
"""


def _listed(text: str) -> list[str]:
    return [item.strip() for line in text.strip().splitlines() for item in line.split(" | ")]


SEVERAL = "test_students_run.py::test_students_of_one_selection_and_one_that_is_added"
ANALYSED = "test_analysis_run.py::test_an_analysis_is_killed_resumed_cached_and_shown"
COPIED = "test_moved_run.py::test_a_moved_run_goes_on"
EXPLAINED = "test_analysis_run.py::test_a_row_is_explained"
_ANALYSED = """
    curate analyze runs/quickstart | curate analyze CONFIG
    curate analyze runs/quickstart --set analyze.engine.nodes=1000000 --json
"""
_INIT = """
    curate init --data labelled.csv unlabelled.csv --model google/gemma-3-270m
    curate init --data labelled.csv unlabelled.csv | curate init --data | curate init --data LABELLED [UNLABELLED]
"""
_FIRST = """
    curate validate curation.yaml | curate run curation.yaml
"""
_EXPLAINED = """
    curate explain runs/quickstart 19604 | curate explain RUN ROW_ID | curate explain RUN_DIR ROW_ID
"""

OFFLINE: dict[str, str] = {
    **dict.fromkeys(_listed(_OWN), OWN),
    **dict.fromkeys([_PAGE_INIT, *_listed(_PAGE)], PAGE),
    **dict.fromkeys(_listed(_CLASSIFIER), CLASSIFIER),
    "curate validate given.yaml": _GIVEN_CHECK,
    "curate run given.yaml": _GIVEN_RUN,
    "curate export-trust runs/given -o given-trust": _GIVEN_FILTER,
    "curate filter given-trust pool.csv -o given-kept --keep 0.1": _GIVEN_FILTER,
    **dict.fromkeys([f"curate {verb} served.yaml" for verb in ("validate", "plan", "run", "status")], _SERVED),
    **dict.fromkeys(_listed(_ANALYSED), ANALYSED),
    **dict.fromkeys(_listed(_EXPLAINED), EXPLAINED),
    **dict.fromkeys(_listed(_FIRST), "test_first_contact.py::test_from_two_files_to_filtered_rows"),
    **dict.fromkeys(_listed(_INIT), "curation/extras/test_init_data.py::test_texts_with_classes_in_two_files"),
    **dict.fromkeys(
        ["curate filter ... --plan", "curate filter PACKAGE POOL ... --plan"],
        "test_filter_plan.py::test_a_plan_shows_the_stages_and_forecasts_what_is_left",
    ),
    "curate filter packages/chess pool/ -o filtered --certified 0.1": "test_filter.py::"
    "test_a_certified_cut_is_that_of_the_calibration_rows",
    "curate report --combine DIR DIR": "curation/report/test_combining.py::"
    "test_three_seeds_by_one_command_equal_scipy_on_the_pooled_table",
    "curate report --combine DIR DIR...": "curation/report/test_combining.py::"
    "test_three_seeds_by_one_command_equal_scipy_on_the_pooled_table",
    "curate inspect RUN_DIR gen-0/teacher": "curation/pipeline/test_left_out.py::"
    "test_rows_that_a_teacher_is_not_adapted_on_are_listed_with_their_reasons",
    **dict.fromkeys(_listed("curate run runs/other"), COPIED),
    "curate export-student runs/my-run --student large -o large": SEVERAL,
    "curate tune CONFIG": "test_search_run.py::test_a_search_whose_driver_is_killed_ends_with_the_same_leaderboard",
    "python plain_trl.py rows Qwen/Qwen3-1.7B-Base -o student": (
        "test_plain_trl.py::test_a_selection_trains_by_plain_trl"
    ),
    'curl -H "Authorization: Bearer $CURATION_TOKEN" -d \'[{"problem": "What is 2 + 3?"}]\' http://localhost:8000/': (
        "test_serve.py::test_rows_of_concurrent_requests_come_back_with_their_trust"
    ),
    "export CURATION_TOKEN=$(openssl rand -hex 32)": "test_serve.py::"
    "test_rows_of_concurrent_requests_come_back_with_their_trust",
}
"""By a command, the test that runs it with what a reader puts in."""

STAND_IN: dict[str, str] = {
    **dict.fromkeys(_listed(_STORE), STORE),
    "curate export runs/my-run -o rows --push me/my-rows": "curation/commands/test_results.py::"
    "test_the_folder_is_pushed_as_it_is",
    "serve run deploy.serve:app package=s3://my-bucket/trust/mine replicas=2 num_gpus=1": "test_serve.py::"
    "test_rows_of_concurrent_requests_come_back_with_their_trust",  # by serve.run, on a CPU
}
"""By a command, the test that runs it against a server or cluster of this machine."""


class Cannot(NamedTuple):
    """Why a command is not run here, and which test looks at what it reads instead."""

    because: str
    instead: str


_AWS = Cannot("starts or asks machines of AWS", "test_cluster_files.py::test_ray_up_takes_the_cluster_file")
_GPUS = Cannot("takes GPUs, models and data sets of the hub", "test_paper_examples.py::test_run_is_valid")
_LONG = Cannot("takes minutes to hours", "test_examples.py::test_examples_read_as_configurations")
_CELLS = "test_cells_have_directories_and_seeds_of_their_own_and_load"
_ABLATION = Cannot("takes minutes to hours", "test_ablation_run.py::test_the_shipped_ablations_are_valid")
_CI = Cannot("is the test run itself, or a part of it", "test_docs.py::test_targets_and_modules_of_shell_blocks_exist")

CANNOT: dict[str, Cannot] = {
    "python -m benchmarks.real --model FOLDER --data FOLDER --write-docs": Cannot(
        "labels with a pretrained model for an hour",
        "test_real_bench.py::test_all_arms_score_a_pool_and_the_tables_say_so",
    ),
    **dict.fromkeys(("ray up cluster.yaml", "ray down cluster.yaml", "ray dashboard cluster.yaml &"), _AWS),
    **dict.fromkeys(
        (
            # the call within it is run
            "ray exec cluster.yaml --tmux 'curate run s3://my-bucket/my.yaml --address auto'",
        ),
        _AWS,
    ),
    "kubectl apply -f deploy/serviceaccount.yaml -f deploy/networkpolicy.yaml -f deploy/rayjob.yaml": Cannot(
        "needs Kubernetes with KubeRay's operator", "test_cluster_files.py::test_the_files_follow_kuberays_crds"
    ),
    "sbatch --nodes=4 deploy/slurm.sh /shared/my.yaml": Cannot(
        "needs Slurm", "test_cluster_files.py::test_the_slurm_script_is_sound"
    ),
    **dict.fromkeys(
        (
            "curate run examples/paper/NAME.yaml",
            "curate validate examples/paper/NAME.yaml",
            "for b in arc-c arc-e obqa sciq siqa; do curate run examples/paper/world-$b-qwen3-4b.yaml; done",
            "curate run examples/paper/world-$b-qwen3-4b.yaml",
            "curate report --combine 'runs/world-*-qwen3-4b' -o report-qwen3-4b",
        ),
        _GPUS,
    ),
    **dict.fromkeys(
        (
            "curate run examples/quickstart.yaml",
            "curate run examples/quickstart.yaml --set selection.budget.n=1000",
            "curate tune examples/quickstart.yaml",
            "curate run examples/mcqa.yaml",
            "curate run examples/grpo.yaml",
        ),
        _LONG,
    ),
    "curate ablate FILE": _ABLATION,
    "python docs/feature_cost.py --at 45c3eaf3 HEAD": Cannot(
        "needs the whole history", "test_feature_cost.py::test_every_feature_is_found_in_the_code"
    ),
    "python -m examples.evidence --write-docs": Cannot("takes hours", "test_evidence.py::" + _CELLS),
    **dict.fromkeys(
        ("make run", "make test", "make test-all", "make test-slow", "make test-vllm", "make test-tracking"), _CI
    ),
    **dict.fromkeys(("make check", "make docs", "make test-browser", ".ci/run", "make test-all SHARD=2/4"), _CI),
}
"""By a command that cannot be run here."""


def of_pages() -> dict[str, str]:
    """Every command of the pages as :data:`OFFLINE` and the others name it, with a page that has it."""
    found: dict[str, str] = {}
    for path in PAGES:
        if path.name == "CHANGELOG.md":
            continue
        for language, text in blocks(path):
            for line in text.replace("\\\n", " ").splitlines() if language == "sh" else ():
                found |= dict.fromkeys(_of_line(line), path.name)
        for text in spans(path):
            if text.startswith("curate ") and _whole(text):
                found[_named(text)] = path.name
    return found


def _of_line(line: str) -> Iterator[str]:
    text = " ".join(re.sub(r"(^|\s)#.*", "", line).split())
    if text and not text.startswith("curate "):
        yield text
    for words in calls(line):
        yield _named(" ".join(["curate", *(f"'{word}'" if re.search(r"[ *]", word) else word for word in words)]))


def _named(command: str) -> str:
    """One name for commands that differ in the file of an example alone, and for quotes of both kinds."""
    command = re.sub(r"examples/ablations/\w+\.yaml", "FILE", command.replace('"', "'"))
    return re.sub(r"(curate run examples/mcqa\.yaml) --set .*", r"\1", command)


def _whole(text: str) -> bool:
    """Whether a call in a sentence can be given as it stands; others name a command or an option of it."""
    if text in ("curate --help", "curate COMMAND -h"):
        return True
    verb, *arguments = [word for word in split(text) if word != "&"][1:]
    command = main.get_command(click.Context(main), verb)
    if isinstance(command, click.Group):
        (verb, *arguments), group = arguments or [""], command
        command = group.get_command(click.Context(group), verb)
    if command is None or any(word.startswith("{") for word in arguments):
        return False
    try:
        command.make_context(verb, list(arguments), parent=click.Context(main, **main.context_settings))
    except (click.ClickException, click.exceptions.Exit):
        return False
    return bool(arguments) or not any(param.required for param in command.params)
