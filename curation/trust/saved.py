"""Files of fitted functions: a directory of safetensors and JSON, pinned by the digest of its content."""

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING

from curation.errors import ModelError
from curation.json_types import Json
from curation.refs import TrustRef
from curation.storage.cache import staged
from curation.storage.digest import compute_directory_digest
from curation.storage.json_files import read_json
from curation.storage.paths import Place, to_place

if TYPE_CHECKING:
    from torch import Tensor

WEIGHTS, DESCRIPTION = "weights.safetensors", "description.json"


def save(directory: Place, weights: Mapping[str, "Tensor"], description: Mapping[str, object]) -> TrustRef:
    """Write weights and description into ``directory``, which is made if missing."""
    import safetensors.torch

    with staged(directory) as local:
        local.mkdir(exist_ok=True)
        copies = {name: tensor.cpu().contiguous() for name, tensor in weights.items()}
        safetensors.torch.save_file(copies, local / WEIGHTS)
        (local / DESCRIPTION).write_text(json.dumps(description, indent=2) + "\n")
    return pin(directory)


def read_description(ref: TrustRef) -> Json:
    """Return the saved description of the function that ``ref`` names; raise ``ModelError`` if it is no JSON object."""
    try:
        found = read_json(to_place(ref.uri) / DESCRIPTION)
    except OSError as error:
        raise ModelError(
            f"{ref.uri}: {DESCRIPTION} cannot be read ({error.strerror or error}); restore it, or fit it again"
        ) from error
    except ValueError as error:
        raise ModelError(f"{ref.uri}: was not saved by this version ({error})") from error
    if not isinstance(found, dict):
        raise ModelError(f"{ref.uri}: was not saved by this version ({DESCRIPTION} is not a JSON object)")
    return found


def pin(directory: Place) -> TrustRef:
    """Return the reference to a directory that :func:`save` wrote; raise ``ModelError`` if it lacks a file."""
    for name in (WEIGHTS, DESCRIPTION):
        if not (directory / name).is_file():
            raise ModelError(f"{directory}: has no {name}; give a directory that a fit saved")
    return TrustRef(uri=str(directory.resolve()), digest=compute_directory_digest(directory))
