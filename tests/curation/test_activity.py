"""The work that a command names after a long silence."""

from curation.activity import doing, get_current_activity


def test_of_equal_works_the_one_that_ends_is_taken_off():
    with doing("reading"):
        with doing("asking"):
            with doing("reading"):
                assert get_current_activity() == "reading"
            assert get_current_activity() == "asking"
        assert get_current_activity() == "reading"
    assert get_current_activity() is None
