"""A scripted teacher whose hidden states tell right answers from wrong ones only as long as it is the first teacher."""

import numpy as np
import pyarrow as pa

from curation.config import AskConfig
from curation.hashing import hash_unit
from curation.refs import ModelRef
from curation.registry import Backend
from curation.tables.schemas import get_state_column
from curation.teachers.scripted import ScriptedTeacher

RIGHT = " \\boxed{1}"
BACKEND = Backend("fading_teacher:FadingTeacher", weights=False)


class FadingTeacher(ScriptedTeacher):
    """Half of its answers are right; a student that teaches (``model``) says nothing of which."""

    def __init__(self, config: AskConfig, model: ModelRef | None = None) -> None:
        super().__init__(config, model)
        self._fades = model is not None

    def _complete(self, batch, config, seed, **how):
        completed = super()._complete(batch, config, seed, **how)
        ids_N = completed.column("row_id").to_numpy()
        right_N = np.array([text == RIGHT for text in completed.column("completion").to_pylist()], dtype=np.float32)
        value_N = hash_unit(ids_N, seed + 1).astype(np.float32) + (0 if self._fades else 1) * right_N
        states = (value_N[:, None] * self._direction_D).astype(config.state_dtype).ravel()
        for name in map(get_state_column, config.states):
            place = completed.schema.get_field_index(name)
            field = completed.schema.field(place)
            completed = completed.set_column(
                place, field, pa.FixedSizeListArray.from_arrays(pa.array(states), type=field.type)
            )
        return completed
