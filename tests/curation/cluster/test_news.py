import ray._private.worker as worker

from curation.cluster import news, ray_private

DUMP = (
    "Raylet is terminated. Termination is unexpected. Last 20 lines of the Raylet logs:\n"
    + "    [state-dump] NodeManager.GcsCheckAlive - 1 total (1 active)\n" * 20
)
RETRY = "Task MapWorker.submit failed. There are infinite retries remaining, so the task will be retried."


def test_a_dump_is_heard_whole_and_said_in_one_line_once_on_the_standard_error(capsys):
    heard: list[str] = []
    with ray_private.starting(news.tell), news.follow(heard.append):
        for text in (DUMP, RETRY, DUMP, RETRY + " again"):
            worker.print_to_stdstream({"lines": [text], "pid": "raylet", "is_err": False}, ignore_prefix=False)
        worker.print_to_stdstream(
            {"lines": ["an actor died: killed by `ray.kill`"], "pid": "raylet", "is_err": False}, ignore_prefix=False
        )
    out, err = capsys.readouterr()
    assert out == "" and heard == [DUMP, RETRY, DUMP, RETRY + " again"]
    first, second = err.splitlines()
    assert first.endswith("Ray: Raylet is terminated. Termination is unexpected. (whole, and again: events.jsonl)")
    assert second.endswith(f"Ray: {RETRY} (whole, and again: events.jsonl)")


def test_without_a_run_the_line_is_said_and_of_a_spill_the_reason(capsys):
    news.tell("cannot spill:\n File x, in spill_objects\n OSError: No space left on device")
    news.tell("x" * 500)
    out, err = capsys.readouterr()
    spilled, long = err.splitlines()
    assert out == "" and spilled.endswith("Ray: OSError: No space left on device")
    assert long.endswith(f"Ray: {'x' * news.MOST} ...")
