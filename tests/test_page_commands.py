"""Every command of the pages is run by a test, offline or against a local stand-in, or says why it cannot be."""

import pytest
from asserted import Unknown, asserted
from page_commands import CANNOT, OFFLINE, STAND_IN, of_pages


def test_every_command_of_the_pages_is_in_one_list():
    found = of_pages()
    assert len(found) > 60
    listed = [*OFFLINE, *STAND_IN, *CANNOT]
    assert [(command, page) for command, page in found.items() if command not in listed] == []
    assert [command for command in listed if command not in found] == [], "no page has it any more"
    assert [command for command in listed if listed.count(command) > 1] == []


def test_the_tests_that_run_them_exist():
    named = {*OFFLINE.values(), *STAND_IN.values(), *(item.instead for item in CANNOT.values())}
    for test in named:
        asserted(test)
    with pytest.raises(Unknown):
        asserted("test_page_commands.py::test_nothing")
