"""Checks of Ray: whether it starts or answers; versions, clocks and run directory of its nodes; room for actors."""

import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack

from curation.cluster import capacity, nodes
from curation.cluster.session import local_or_cluster
from curation.commands.doctor import smoke, storage, teacher
from curation.commands.doctor.finding import Finding, fail, ok, run_check, warn
from curation.config import RayConfig, RunConfig
from curation.heavy import ray
from curation.storage.paths import Place, write_atomically

MAX_OFFSET, FAR_OFFSET = 1.0, 60.0
"""Clock offsets between nodes, in seconds, above which there is a warning or a failure. Ages in ``curate status`` are
wrong by the offset; far off, object stores refuse requests (Amazon's at 15 minutes) and valid leases seem expired."""

ROUNDS = 3
PROBE_SECONDS = 660


def examine(
    settings: RayConfig, config: RunConfig | None, directory: Place, *, vllm: bool, cluster: bool
) -> Iterator[Finding]:
    """Yield the findings of a cluster, or of Ray on this machine if no address is given."""
    joins = capacity.find_address(settings) != capacity.LOCAL
    with ExitStack() as stack:
        joined = run_check("ray", _join, settings, stack)
        yield joined
        if joined.state == "fail":
            return
        yield run_check("versions", _check_versions)
        if joins or len(nodes.list_living()) > 1:
            yield run_check(
                "clocks",
                lambda: judge_clocks({nodes.name(n): _measure_offset(n["NodeID"]) for n in nodes.list_living()}),
            )
            yield run_check("shared files", _check_shared_files, directory)
        if config is not None:
            yield run_check("room", _check_room, config)
        if joins:
            yield run_check("vllm", _check_vllm, config, vllm)
        if cluster:
            yield from smoke.examine(directory)


def _join(settings: RayConfig, stack: ExitStack) -> Finding:
    start = time.monotonic()
    stack.enter_context(local_or_cluster(settings, same_versions=False))
    seconds = time.monotonic() - start
    living = nodes.list_living()
    kinds = Counter(
        f"{has.get('CPU', 0):g} CPUs, {has.get('GPU', 0):g} GPUs, {has.get('object_store_memory', 0) / 2**30:.1f} GiB "
        "object store"
        for has in (node["Resources"] for node in living)
    )
    finding = "; ".join(f"{number} with {resources}" for resources, number in kinds.most_common())
    address = capacity.find_address(settings)
    what = "starts on this machine" if address == capacity.LOCAL else f"{address} answers"
    return ok(f"{what} in {seconds:.1f} s, {len(living)} node{'s' if len(living) > 1 else ''}: {finding}")


def _check_versions() -> Finding:
    question = nodes.make_versions_question()
    answers = nodes.ask(question)
    silent = [f"{answer.node} does not answer ({answer.problem})" for answer in answers if answer.problem is not None]
    if differing := list(nodes.describe_differing_nodes(question(), answers)):
        return fail("; ".join(differing + silent), "install the same on every node (constraints.txt)")
    if silent:
        return fail("; ".join(silent), "see the logs of these nodes (session_latest/logs in Ray's directory)")
    return ok(f"the same on {len(answers)} node{'s' if len(answers) > 1 else ''} as here")


def judge_clocks(offsets: Mapping[str, tuple[float, float]]) -> Finding:
    """Return the verdict on clock offsets from this machine, given as (offset, error) in seconds by node."""
    wrong = {node: offset for node, (offset, error) in offsets.items() if abs(offset) - error > MAX_OFFSET}
    if wrong:
        finding = [f"{node} is {abs(by):.1f} s {'ahead' if by > 0 else 'behind'}" for node, by in wrong.items()]
        far = any(abs(offset) - error > FAR_OFFSET for offset, error in offsets.values())
        return (fail if far else warn)(", ".join(finding), "let all nodes follow one time server (chrony, ntpd)")
    most = max((abs(offset) for offset, _ in offsets.values()), default=0.0)
    error = max((error for _, error in offsets.values()), default=0.0)
    return ok(f"at most {most:.3f} s from this one's (known to {error:.3f} s)")


def _measure_offset(node_id: str) -> tuple[float, float]:
    """Return a node's clock offset from this machine, by the fastest round trip, and its error, half that trip."""

    def now() -> float:  # within, so that it is pickled by value
        import time

        return time.time()

    asked = nodes.make_task(now, node_id)
    rounds = []
    for _ in range(ROUNDS):
        start = time.time()
        there = ray.get(asked.remote(), timeout=nodes.ANSWER_SECONDS)
        end = time.time()
        rounds.append(((end - start) / 2, there - (start + end) / 2))
    error, offset = min(rounds)
    return offset, error


def _check_shared_files(directory: Place) -> Finding:
    """Check that every node reads what this process writes in the run directory, and vice versa."""
    with storage.scratch(directory) as folder:
        token = uuid.uuid4().hex
        write_atomically(folder / "here", token)
        answers = nodes.ask(_make_exchange(), str(folder))
        wrong = []
        for answer in answers:
            path = folder / f"there-{answer.node_id}"
            if answer.problem is not None:
                wrong.append(f"{answer.node} does not answer ({answer.problem})")
            elif answer.value != token:
                wrong.append(f"{answer.node} {answer.value}")
            elif not path.exists() or path.read_text() != token:
                wrong.append(f"this machine does not see what {answer.node} writes")
    if wrong:
        return fail(
            f"{directory}: {'; '.join(wrong)}", "set run_dir to a path that all nodes mount, or an object store"
        )
    return ok(f"{directory}: {len(answers)} nodes read what this machine writes, and it reads what they write")


def _make_exchange() -> Callable[[str], str]:
    def exchange(folder: str) -> str:
        import ray

        from curation.storage.paths import to_place, write_atomically

        try:
            text = (to_place(folder) / "here").read_text()
            write_atomically(to_place(folder) / f"there-{ray.get_runtime_context().get_node_id()}", text)
        except OSError as error:
            return f"cannot use it: {error}"
        return text

    return exchange


def _check_room(config: RunConfig) -> Finding:
    waits = capacity.check_room(capacity.list_needs(config))
    if waits is not None:
        return warn(waits, "if the autoscaler has no such nodes, add some or ask for less")
    if idle := capacity.describe_idle(config, [node["Resources"] for node in nodes.list_living()]):
        return warn("; ".join(idle), "more actors label faster and cost no more")
    return ok("enough for everything that the configuration starts at once, on nodes that are otherwise idle")


def _check_vllm(config: RunConfig | None, wanted: bool) -> Finding:
    """Check vLLM on a node with the resources of a teacher actor."""
    actor = None if config is None else config.teacher.actors
    takes = {} if actor is None else actor.each
    has = (
        node for node in nodes.list_living() if all(node["Resources"].get(kind, 0) >= n for kind, n in takes.items())
    )
    place = next(has, None)
    if place is None:
        return warn("not checked: no node has the resources of a teacher actor", "run the check again when one is up")
    asked = nodes.make_task(teacher.look, place["NodeID"], takes)
    answer = ray.get(asked.remote(teacher.make_vllm_question(config, wanted)), timeout=PROBE_SECONDS)
    verdict = teacher.judge_vllm(teacher.choose_vllm_backend(config, wanted), answer)
    return verdict._replace(finding=f"{nodes.name(place)}: {verdict.finding}")
