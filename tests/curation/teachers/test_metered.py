"""Tokens are counted of all that is asked, and each count is given once."""

from curation.config import AskConfig, DecodingConfig, ScriptedConfig
from curation.teachers import Request, Teacher
from curation.teachers.scripted import ScriptedTeacher
from curation.teachers.wrapped import Tokens, WrappedTeacher


def test_tokens_of_all_calls_are_counted_once():
    teacher = WrappedTeacher(ScriptedTeacher(AskConfig(scripted=ScriptedConfig(completions=("one two",)))))
    requests = [Request(row_id=row, prompt="a b c") for row in range(4)]
    for states in (True, False):
        (batch,) = teacher.label(requests, DecodingConfig(), seed=0, states=states)
        assert batch.num_rows == 4
    assert teacher.take() == Tokens(prompt=24, output=16) and teacher.take() == Tokens()
    other = teacher.asked(AskConfig(states=()))
    list(other.label(requests[:1], DecodingConfig(), seed=0))
    assert teacher.take() == Tokens() and other.take() == Tokens(prompt=3, output=2)
    assert (other.state_size, other.facts) == (teacher.state_size, teacher.facts)


def test_a_teacher_of_ones_own_sets_what_is_known_of_it_on_itself():
    class Own(Teacher):
        def __init__(self):
            self.slots, self.pause, self.facts, self.state_size = 4, "waits", {"start_seconds": 1.0}, 2

    own = Own()
    assert (own.slots, own.pause, own.facts, own.state_size) == (4, "waits", {"start_seconds": 1.0}, 2)
