"""Profiles of ~/.aws: which keys and which region get into the environment, and what is refused."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from curation.errors import ConfigError, RunDirError
from curation.storage import aws_profile
from curation.storage.paths import Remote

KEYS = {"AWS_ACCESS_KEY_ID": "AKIA1", "AWS_SECRET_ACCESS_KEY": "se%cret/1="}
CREDENTIALS = """
[default]
aws_access_key_id = AKIA1
aws_secret_access_key = se%cret/1=

[two]
aws_access_key_id = AKIA2
aws_secret_access_key = secret2
aws_session_token = token2

[half]
aws_access_key_id = AKIA3

[assumes]
aws_access_key_id = AKIA4
aws_secret_access_key = secret4
"""
CONFIG = """
[default]
region = eu-west-1
s3 =
  max_concurrent_requests = 4

[profile two]
region = eu-central-1

[profile "with space"]
aws_access_key_id = AKIA5
aws_secret_access_key = secret5

[profile alone]
sso_session = work
region = us-west-2

[profile assumes]
role_arn = arn:aws:iam::1:role/x
source_profile = default

[sso-session work]
sso_region = us-east-1
"""


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A home with both files, and an environment that says nothing of Amazon."""
    before = dict(os.environ)
    for name in list(os.environ):
        if name.startswith("AWS_"):
            del os.environ[name]
    os.environ["HOME"] = str(tmp_path)
    (tmp_path / ".aws").mkdir()
    (tmp_path / ".aws" / "credentials").write_text(CREDENTIALS)
    (tmp_path / ".aws" / "config").write_text(CONFIG)
    aws_profile.use.cache_clear()
    yield tmp_path
    os.environ.clear()
    os.environ |= before
    aws_profile.use.cache_clear()


def used(**environment: str) -> dict[str, str]:
    """What the first place in an object store puts into an environment."""
    os.environ |= environment
    before = dict(os.environ)
    Remote("s3://bucket/run")
    assert before.items() <= os.environ.items()
    return {name: value for name, value in os.environ.items() if name not in before}


def test_the_default_profile_is_put_into_an_empty_environment(home):
    assert used() == KEYS | {"AWS_REGION": "eu-west-1"}


def test_the_profile_that_is_named_is_used(home):
    assert used(AWS_PROFILE="two") == {
        "AWS_ACCESS_KEY_ID": "AKIA2",
        "AWS_SECRET_ACCESS_KEY": "secret2",
        "AWS_SESSION_TOKEN": "token2",
        "AWS_REGION": "eu-central-1",
    }


def test_keys_may_stand_in_the_file_of_settings(home):
    assert used(AWS_PROFILE="with space")["AWS_ACCESS_KEY_ID"] == "AKIA5"


def test_files_that_the_environment_names_come_first(home):
    (home / "other").write_text("[default]\naws_access_key_id=A\naws_secret_access_key=S\n")
    found = used(AWS_SHARED_CREDENTIALS_FILE="~/other", AWS_CONFIG_FILE=str(home / "none"))
    assert found == {"AWS_ACCESS_KEY_ID": "A", "AWS_SECRET_ACCESS_KEY": "S"}


@pytest.mark.parametrize("name", aws_profile.OWN_CREDENTIALS)
def test_an_environment_with_credentials_of_its_own_wins(home, name):
    (home / ".aws" / "config").write_text("no such file")
    assert used(**{name: "given", "AWS_PROFILE": "nowhere"}) == {}


@pytest.mark.parametrize("name", ["AWS_REGION", "AWS_DEFAULT_REGION"])
def test_a_region_of_the_environment_wins(home, name):
    assert used(**{name: "ap-south-1"}) == KEYS


def test_a_token_of_the_environment_goes_with_no_other_keys(home):
    os.environ["AWS_SESSION_TOKEN"] = "of keys that are gone"
    aws_profile.use()
    assert "AWS_SESSION_TOKEN" not in os.environ and os.environ["AWS_ACCESS_KEY_ID"] == "AKIA1"


def test_without_files_or_keys_it_is_left_to_the_role_of_the_machine(home):
    (home / ".aws" / "credentials").write_text("[default]\naws_access_key_id = half\n")
    assert used() == {"AWS_REGION": "eu-west-1"}
    for file in ("credentials", "config"):
        (home / ".aws" / file).unlink()
    del os.environ["AWS_REGION"]
    aws_profile.use.cache_clear()
    assert used() == {}


def test_a_profile_that_is_nowhere_is_refused(home):
    with pytest.raises(RunDirError, match=r"AWS_PROFILE names 'gone'.*/\.aws/credentials nor in .*/\.aws/config"):
        used(AWS_PROFILE="gone")


@pytest.mark.parametrize("name", ["alone", "half", "assumes"])
def test_a_profile_without_keys_of_its_own_is_refused_where_it_is_named(home, name):
    with pytest.raises(RunDirError, match=f"without keys.*aws configure export-credentials --profile {name} --format"):
        used(AWS_PROFILE=name)
    with pytest.raises(RunDirError):  # not only the first time
        Remote("s3://bucket/run")


def test_a_file_that_is_none_is_named_and_not_quoted(home):
    (home / ".aws" / "credentials").write_text("aws_secret_access_key = hidden\n")
    with pytest.raises(RunDirError, match=r"/\.aws/credentials: is not a file of profiles") as caught:
        used()
    assert "hidden" not in str(caught.value)


def test_other_places_read_no_profile(home):
    os.environ["AWS_PROFILE"] = "gone"
    Remote("gs://bucket/run")
    assert "AWS_ACCESS_KEY_ID" not in os.environ


def test_a_configuration_that_names_a_place_is_refused_with_the_reason(home):
    from curation.config.load import parse_config

    sections = {
        "name": "x",
        "run_dir": "s3://bucket/x",
        "sources": {"a": {"path": "a"}},
        "splits": {"source": {"from": "a", "rows": 1}, "pool": {"from": "a"}},
        "teacher": {"backend": "scripted"},
        "selection": {"budget": {"n": 1}, "arms": ["naive"]},
    }
    os.environ["AWS_PROFILE"] = "gone"
    with pytest.raises(ConfigError, match=r"run_dir: .*AWS_PROFILE names 'gone'"):
        parse_config(sections)


def test_a_process_that_is_started_later_inherits_the_keys(home):
    used(AWS_PROFILE="two")
    script = "import os; print(os.environ['AWS_SESSION_TOKEN'])"
    assert subprocess.check_output([sys.executable, "-c", script], text=True) == "token2\n"
    assert Path.home() == home
