"""Damage to the directories of a finished run and of a killed one, on which every command is tried."""

from collections import Counter
from pathlib import Path

from benchmarks.fuzz.damage import Named
from benchmarks.fuzz.rundirs import check_directory
from benchmarks.fuzz.subjects import runs

_LABELS, _SELECT = "gen-0/label-pool-*/labels.lance", "gen-0/select-*"
WHOLE: dict[str, tuple[Named, ...]] = {
    "a selection's table deleted": (Named(f"{_SELECT}/trust.lance/data/*", "delete folder"),),
    "all of a selection deleted": (Named(f"{_SELECT}/naive.lance", "delete folder"),),
    "a data file of labels deleted": (Named(f"{_LABELS}/data/*", "delete"),),
    "the versions of labels deleted": (Named(f"{_LABELS}/_versions/*.manifest", "delete folder"),),
    "the newest version of labels deleted": (Named(f"{_LABELS}/_versions/*.manifest", "delete"),),
    "the weights deleted": (Named("gen-0/trust-*/weights.safetensors", "delete"),),
    "the manifest cut": (Named("manifest.json", "cut"),),
    "the manifest empty": (Named("manifest.json", "empty"),),
    "a folder in place of the manifest": (Named("manifest.json", "folder"),),
    "an older manifest": (Named("manifest.json", "older"),),
    "a selection cut": (Named(f"{_SELECT}/naive.lance/data/*", "cut"),),
    "a data file of labels cut": (Named(f"{_LABELS}/data/*", "cut"),),
    "a byte of the manifest flipped": (Named("manifest.json", "flip"),),
    "a byte of labels flipped": (Named(f"{_LABELS}/data/*", "flip"),),
    "a byte of a version flipped": (Named(f"{_LABELS}/_versions/*.manifest", "flip"),),
    "a byte of a selection flipped": (Named(f"{_SELECT}/trust.lance/data/*", "flip"),),
    "a byte of the weights flipped": (Named("gen-0/trust-*/weights.safetensors", "flip", 0.9),),
    "a byte of the digests flipped": (Named("gen-0/.label-pool-*.sums.json", "flip"),),
    "a byte of the events flipped": (Named("events.jsonl", "flip"),),
    "a byte of config.yaml flipped": (Named("config.yaml", "flip"),),
    "a folder in place of the report": (Named("report.html", "folder"),),
    "a lease cut": (Named("lease/*.json", "cut"),),
}
BROKEN_OFF = {
    "killed: a data file of labels deleted": (Named(f"{_LABELS}/data/*", "delete"),),
    "killed: a byte of labels flipped": (Named(f"{_LABELS}/data/*", "flip"),),
    "killed: a data file of labels cut": (Named(f"{_LABELS}/data/*", "cut"),),
    "killed: the manifest cut": (Named("manifest.json", "cut"),),
}


def try_all(folder: Path) -> Counter[str]:
    """Count cases refused, by a command or by `curate verify`, and cases that gave the right result at once."""
    counts: Counter[str] = Counter()
    subject = runs(folder)
    for state, cases in ((1, WHOLE), (0, BROKEN_OFF)):
        for name, damages in cases.items():
            try:
                outcomes = check_directory(subject, state, damages)
            except AssertionError as error:
                outcome = "traceback" if "Traceback" in str(error) else "failed"
                print(f"directories: {name}: {outcome}: {error}")
            else:
                outcome = "refused" if outcomes else "carried through"
            counts[outcome] += 1
    subject.worker.close()
    return counts
