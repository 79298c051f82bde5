"""The fit stage: fits a trust function on the graded labels of the source split."""

from collections.abc import Sequence
from typing import NamedTuple

from curation.arms import TRUST, Fitted
from curation.config import DomainConfig, TrustConfig
from curation.config.states import is_of_prompt
from curation.domains import get_domain
from curation.errors import DegenerateSourceError
from curation.json_types import Json
from curation.refs import TableRef, TrustRef
from curation.registry import check_options, load_code
from curation.rundir.graph import Done, In, Inputs, Stage, Table, setting
from curation.rundir.hosts import Host
from curation.rundir.run import Task
from curation.stages.training import make_training_host, training
from curation.tables import io
from curation.trust import saved
from train import course
from train.recipe import parse_recipe


class LabelledClasses(Inputs):
    """A closed set of labels, and the labelled rows with their gold labels."""

    names: Sequence[str]
    examples: In[TableRef]


class FitTrust(Stage):
    """A stage that fits the trust ``function`` of the given name, and reports the choice that the fit made.

    Raises:
        DegenerateSourceError: all labels are right or all wrong, and no ``teacher`` is named.
    """

    class Made(NamedTuple):
        trust: TrustRef | None
        fit: Json | None
        """Result of :func:`describe_fit`."""
        absent: dict[str, str] | None = None

    function: str
    made_by: str
    """Class of the function, as the registry names it."""
    fit_by: str | None
    """Function that fits it in a training process, or None if the class fits itself in this process."""
    labels: In[TableRef]
    grades: In[TableRef]
    trust: TrustConfig
    seed: int
    closed: LabelledClasses | None = None
    """The labels, if they are a closed set that the function reads."""
    teacher: str | None = setting(default=None)
    """Name of the teacher, if labels that are all right or all wrong end the chain but not the run."""
    revision: int = 2  # a stack of 500 rows has networks

    @property
    def takes(self) -> dict[str, float]:
        """Resources of the workers."""
        return self.trust.takes

    @property
    def host(self) -> Host | None:
        """Training process, or None if the function is fitted in this process."""
        return make_training_host(self.trust) if self.fit_by is not None else None

    def run(self, task: Task) -> Done:
        """Fit the trust function, or end the chain."""
        num_rows = io.count(self.labels)
        try:
            ref = self._fit(task)
        except DegenerateSourceError as error:
            if self.teacher is None:
                raise
            why = f"the chain ends, as no trust can be fitted on the answers of {self.teacher} ({error})"
            task.say(why)
            return Done(outputs=self.Made(trust=None, fit=None, absent={"trust": why}), rows=num_rows)
        fit = describe_fit(ref)
        if (choice := fit["choice"]) is not None:
            task.say(choice["reason"])
        return Done(outputs=self.Made(trust=ref, fit=fit), rows=num_rows)

    def _fit(self, task: Task) -> TrustRef:
        from train.probes import ClosedLabels
        from train.trust import fit_here

        options = self.trust.options.get(self.function, {})
        given = (self.labels, self.grades, self.trust)
        how: Json = {"seed": self.seed, "output": task.directory}
        if self.fit_by is None:
            return fit_here(load_code(self.made_by), *given, **how, options=options)
        fit_net, further = load_code(self.fit_by), {**how, **options}
        if self.closed is not None:
            further["closed"] = ClosedLabels(tuple(self.closed.names), self.closed.examples)
        check_options("trust.options", fit_net, *given, **further)
        notes = task.directory.with_name(f"{task.directory.name}.progress")
        with task.progress() as update, course.followed(notes, update), training(task, self.trust):
            found: TrustRef = fit_net(*given, **further)
        return found


def find_closed_classes(domain: DomainConfig, states: Sequence[str], examples: Table) -> LabelledClasses | None:
    """Return the labels of labelled rows, if they are a closed set and trust reads a state of the prompt; else None."""
    if not any(map(is_of_prompt, states)) or (names := get_domain(domain).closed_labels()) is None:
        return None
    return LabelledClasses(names=names, examples=examples)


def check_settings(config: TrustConfig) -> None:
    """Raise ``ConfigError`` for a setting of ``trust.options`` that a trust function does not take."""
    for name, options in config.options.items():
        fitted = TRUST[name]
        if name == "stacked":
            parse_recipe(options)
        elif options and isinstance(fitted, Fitted) and fitted.fit is None:
            takes = load_code(fitted.made_by).fitted
            check_options(f"trust.options.{name}", takes, None, None, config, None, **options)


def describe_fit(trust: TrustRef) -> Json:
    """Return a fit's summary for terminal and report: its ``kind``, rows, and ``choice`` (None if there was none)."""
    description = saved.read_description(trust)
    fit = description["fit"]
    return {
        "kind": description["kind"],
        "num_fit": fit["num_fit"],
        "share_right_fit": fit["share_right_fit"],
        "num_repeats": fit.get("num_repeats", 0),
        "calibration": description["calibration"],
        "choice": fit.get("choice"),
    }
