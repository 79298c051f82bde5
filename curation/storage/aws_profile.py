"""Credentials of a profile in ``~/.aws``, put into the environment, which obstore, Lance and Ray's workers all read.

The environment always wins. Only keys and a region are taken from a profile. Other sources of credentials (SSO, roles
to assume, processes to run) are not supported: theirs expire within hours, and environment variables are not renewed.

No library is used: botocore reads the same files and more, and obstore takes renewed credentials from boto3. But Lance
takes no credentials from Python, and the environment reaches Ray's workers too. So botocore (31 MB, most of a second to
import) would do no more here than read two files.
"""

import configparser
import os
import shlex
from functools import cache
from pathlib import Path

from curation.errors import RunDirError

OWN_CREDENTIALS = (
    "AWS_ACCESS_KEY_ID",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
)
"""Variables that give the process or its pod credentials; if one is set, no profile is read."""
KEYS = ("aws_access_key_id", "aws_secret_access_key", "aws_session_token")
ELSEWHERE = ("role_arn", "sso_session", "sso_start_url")
"""Settings of a profile whose credentials come from a role or a single sign-on, not from keys in the file."""


@cache
def use() -> None:
    """Put keys and region of the profile ``AWS_PROFILE``, or the default, into the environment; or ``RunDirError``."""
    if any(os.environ.get(name) for name in OWN_CREDENTIALS):
        return
    named = os.environ.get("AWS_PROFILE")
    name = named or "default"
    files = [
        Path(os.environ.get("AWS_CONFIG_FILE") or "~/.aws/config").expanduser(),
        Path(os.environ.get("AWS_SHARED_CREDENTIALS_FILE") or "~/.aws/credentials").expanduser(),
    ]
    config, credentials = (_read_profiles(file) for file in files)
    if named and name not in config and name not in credentials:
        raise RunDirError(
            f"AWS_PROFILE names {name!r}, a profile that is neither in {files[1]} nor in {files[0]}; "
            f"write it with `aws configure --profile {name}`, or name another one"
        )
    profile = config.get(name, {}) | credentials.get(name, {})
    if all(profile.get(key) for key in KEYS[:2]) and not any(profile.get(key) for key in ELSEWHERE):
        for key in KEYS:
            os.environ.pop(key.upper(), None)  # a token belongs to its own keys alone
            if profile.get(key):
                os.environ[key.upper()] = profile[key]
    elif named:
        raise RunDirError(
            f"AWS_PROFILE names {name!r}, a profile without keys of its own (in {files[1]}); put those that it stands "
            f'for into the environment: eval "$(aws configure export-credentials --profile {name} --format env)"'
        )
    if profile.get("region") and not (os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")):
        os.environ["AWS_REGION"] = profile["region"]


def _read_profiles(file: Path) -> dict[str, dict[str, str]]:
    """Return the settings of a file by profile, none without a file; ``RunDirError`` if it holds no profiles."""
    parser = configparser.RawConfigParser(default_section="")  # "DEFAULT" is none of AWS's
    try:
        parser.read(file, encoding="utf-8")
    except (configparser.Error, UnicodeDecodeError) as error:  # which may quote a line with a key in it
        raise RunDirError(
            f"{file}: is not a file of profiles ({type(error).__name__}); fix it, or put keys into the environment"
        ) from None
    return {_name(section): dict(parser[section]) for section in parser.sections()}


def _name(section: str) -> str:
    """Return the profile's name from a section's title: ``profile NAME`` in the config file, else ``NAME``."""
    try:
        words = shlex.split(section)
    except ValueError:
        return section
    return words[1] if len(words) == 2 and words[0] == "profile" else section
