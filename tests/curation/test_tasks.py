"""Ray tasks over many items: results in order, a bounded number under way, errors of the user unchanged."""

import os
import time
from pathlib import Path

import pytest

from curation.errors import ClusterError, CurationError, RunFailedError, SourceError
from curation.tasks import make_driver_error, run_in_tasks


def test_results_come_in_the_order_of_the_calls(local_ray):
    def late(number: int) -> int:
        time.sleep(0.05 * (number % 3 == 0))
        return number

    assert list(run_in_tasks(late, ((number,) for number in range(12)))) == list(range(12))
    assert list(run_in_tasks(late, [])) == []


def test_calls_are_drawn_as_results_are_taken(local_ray):
    drawn = []

    def calls():
        for number in range(50):
            drawn.append(number)
            yield (number,)

    results = run_in_tasks(lambda number: number, calls(), num_cpus=0)
    assert next(results) == 0
    assert len(drawn) == 6, "three a CPU, of two"
    assert next(results) == 1 and len(drawn) == 7


def test_an_error_of_the_user_is_raised_as_it_is_and_another_with_its_text(local_ray):
    def refuse(text: str) -> None:
        raise SourceError(text)

    with pytest.raises(SourceError, match=r"^the file is empty$"):
        list(run_in_tasks(refuse, [("the file is empty",)]))

    def fail() -> None:
        raise KeyError("lost")

    with pytest.raises(local_ray.exceptions.RayTaskError, match="KeyError: 'lost'"):
        list(run_in_tasks(fail, [()]))


def test_the_cause_of_an_error_is_told_without_the_frames_of_rays_processes(local_ray):
    def inner(error: BaseException) -> None:
        raise error

    def outer(error: BaseException) -> None:
        import ray

        ray.get(ray.remote(inner).options(num_cpus=0).remote(error))

    def caused(error: BaseException) -> CurationError:
        with pytest.raises(local_ray.exceptions.RayTaskError) as found:
            local_ray.get(local_ray.remote(outer).remote(error))
        return make_driver_error(found.value, "prepare")

    found = caused(ClusterError("versions differ; install the same"))
    assert type(found) is ClusterError and str(found) == "versions differ; install the same"
    found = caused(ValueError("of two\nlines"))
    assert type(found) is RunFailedError
    assert str(found) == "prepare failed: ValueError of two; the same command resumes from what is committed"
    died = make_driver_error(local_ray.exceptions.WorkerCrashedError(), "teacher")
    assert str(died).startswith("teacher failed: WorkerCrashedError The worker died unexpectedly")


def test_a_task_whose_process_dies_is_done_again(local_ray, tmp_path: Path):
    def die_once(path: str) -> str:
        if not os.path.exists(path):
            Path(path).touch()
            os._exit(1)
        return path

    paths = [(str(tmp_path / f"{number}"),) for number in range(3)]
    assert list(run_in_tasks(die_once, paths)) == [path for (path,) in paths]
