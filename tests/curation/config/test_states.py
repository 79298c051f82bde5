"""Names of hidden states."""

import pytest

from curation.config.states import (
    LAST,
    find_depth_problem,
    find_generated_problem,
    find_layers,
    find_other_layers,
    find_positions,
    find_ranks,
    parse,
)


def test_a_name_is_a_position_of_the_last_layer_or_of_another_one():
    assert parse("output_mean") == (LAST, "output_mean", 1)
    assert parse("layer21_prompt_last") == (21, "prompt_last", 1)
    assert parse("option2_output_last") == (LAST, "output_last", 2)
    assert parse("layer3_option12_output_last") == (3, "output_last", 12)
    for name in (
        "layer0_output_last",
        "layer02_output_last",
        "layer_output_last",
        "layer1output_last",
        "layer-1_x",
        "option1_output_last",
        "option02_output_last",
        "option2_output_mean",
        "option2_layer3_output_last",
        "",
    ):
        with pytest.raises(ValueError, match=r"names no hidden state; write .* layer<L>_<position>"):
            parse(name)


def test_layers_are_counted_once_and_ordered_as_numbers():
    names = ("layer10_output_last", "layer9_prompt_last", "output_mean", "layer10_prompt_last")
    assert find_layers(names) == (LAST, 9, 10) and find_other_layers(names) == (9, 10)
    assert find_layers(names[:2]) == (9, 10)
    assert find_layers(()) == (LAST,) and find_other_layers(()) == ()
    assert find_positions(names) == ("output_last", "prompt_last", "output_mean")


def test_ranks_of_options_are_counted_once_and_without_the_answer():
    names = ("option10_output_last", "output_mean", "layer2_option10_output_last", "option3_output_last")
    assert find_ranks(names) == (3, 10) and find_ranks(("output_last",)) == ()
    assert find_positions(names) == ("output_last", "output_mean") and find_layers(names) == (LAST, 2)
    assert find_generated_problem(("output_last", "prompt_last"), "row 3") is None
    assert find_generated_problem(names, "row 3").startswith(
        "teacher.states: 'option10_output_last' is the state of an answer opt"
    )


def test_layers_beyond_a_model():
    assert find_depth_problem(("layer4_option2_output_last",), 4).endswith(
        "or 'option2_output_last', the last layer's after the final norm"
    )
    assert find_depth_problem(("output_last", "layer27_output_last"), 28) is None
    assert find_depth_problem(("output_mean", "layer28_output_last"), 28) == (
        "'layer28_output_last' asks for layer 28 of a model that has 28; "
        "take 1 to 27, or 'output_last', the last layer's after the final norm"
    )
    assert find_depth_problem(("layer1_output_mean",), 1) == (
        "'layer1_output_mean' asks for layer 1 of a model that has 1; "
        "take 'output_mean', the last layer's after the final norm"
    )
