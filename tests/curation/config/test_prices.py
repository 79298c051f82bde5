"""Prices: what is refused, and that no stage depends on them."""

import pytest

from curation.config.load import parse_config
from curation.errors import ConfigError

RUN = {
    "name": "priced",
    "sources": {"rows": {"path": "rows.jsonl"}},
    "splits": {"source": {"from": "rows", "rows": 5}, "pool": {"from": "rows"}},
    "teacher": {"backend": "scripted"},
    "selection": {"budget": {"n": 1}, "arms": ["naive"]},
}


def test_prices_are_optional_each():
    assert parse_config(RUN).prices is None
    prices = parse_config({**RUN, "prices": {"gpu_hour": 2.5, "per_million_prompt_tokens": 0}}).prices
    assert prices is not None and (prices.currency, prices.gpu_hour, prices.cpu_hour) == ("USD", 2.5, None)


@pytest.mark.parametrize(
    ("prices", "told"),
    [
        ({"gpu_hour": -1}, r"prices.gpu_hour: -1: .*greater than or equal to 0"),
        ({"cpu_hour": float("inf")}, "prices.cpu_hour: inf"),
        ({"currency": "euros"}, "prices.currency: 'euros'"),
        ({"currency": "eur"}, "prices.currency: 'eur'"),
        ({"gpu_hours": 1}, "prices.gpu_hours: unknown key; did you mean 'gpu_hour'"),
        ({"cpu_hour": "cheap"}, "prices.cpu_hour: 'cheap'"),
    ],
)
def test_wrong_prices_are_refused(prices: dict, told: str):
    with pytest.raises(ConfigError, match=told):
        parse_config({**RUN, "prices": prices})
