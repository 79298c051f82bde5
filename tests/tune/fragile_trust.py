"""A trust function whose fit fails or dies as its option says, for the tests of the search."""

import os
import signal
import time
from pathlib import Path

from curation.arms import Fitted
from curation.trust.linear_probe import LinearProbe


class Fragile(LinearProbe):
    """A linear probe, if its fit comes to an end."""

    @classmethod
    def fitted(cls, hidden_ND, correct_N, config, origin, *, how="whole", mark=os.devnull):
        with Path(mark).open("a") as file:
            file.write(f"{how}\n")
        if how == "sleeps":
            Path(mark).write_text(str(os.getpid()))
            time.sleep(300)
        if how == "raises":
            raise ValueError("no such luck")
        if how == "dies" or (how == "dies once" and Path(mark).read_text().count(how) == 1):
            os.kill(os.getpid(), signal.SIGKILL)
        return LinearProbe.fitted(hidden_ND, correct_N, config, origin)


OWN = Fitted("fragile", "tests.tune.fragile_trust:Fragile", reads=("class_weight",))
