"""Files of fitted functions: a directory of safetensors and JSON, pinned by the digest of its content."""

import json
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, TypeVar

from safetensors import SafetensorError

from curation.errors import ModelError
from curation.json_types import Json
from curation.refs import ProjectionRef, TrustRef
from curation.storage.cache import fetch_folder, staged
from curation.storage.digest import compute_directory_digest
from curation.storage.json_files import read_json
from curation.storage.paths import Place, to_place

if TYPE_CHECKING:
    from torch import Tensor

WEIGHTS, DESCRIPTION = "weights.safetensors", "description.json"
Fitted = TypeVar("Fitted")
Ref = TypeVar("Ref", TrustRef, ProjectionRef)


def save(directory: Place, kind: type[Ref], weights: Mapping[str, "Tensor"], description: Mapping[str, object]) -> Ref:
    """Write weights and description into ``directory`` (made if missing) and return a reference of type ``kind``."""
    import safetensors.torch

    with staged(directory) as local:
        local.mkdir(exist_ok=True)
        copies = {name: tensor.cpu().contiguous() for name, tensor in weights.items()}
        safetensors.torch.save_file(copies, local / WEIGHTS)
        (local / DESCRIPTION).write_text(json.dumps(description, indent=2) + "\n")
    return pin(directory, kind)


def load(ref: Ref, make: Callable[[dict[str, "Tensor"], Json], Fitted]) -> Fitted:
    """Load the fitted function that ``ref`` pins: return ``make(weights, description)``.

    Raises:
        ModelError: the directory lacks a file, changed since it was pinned, or holds something else.
    """
    import safetensors.torch

    if (found := pin(to_place(ref.uri), type(ref)).digest) != ref.digest:
        raise ModelError(f"{ref.uri}: digest {found}, pinned was {ref.digest}; fit it again")
    directory = fetch_folder(ref.uri)
    try:
        weights = safetensors.torch.load_file(directory / WEIGHTS)
        return make(weights, read_json(directory / DESCRIPTION))
    except (ArithmeticError, AttributeError, LookupError, MemoryError, OSError, RuntimeError, TypeError, ValueError,
            SafetensorError) as error:  # fmt: skip
        raise ModelError(f"{ref.uri}: was not saved by this version ({error})") from error


def read_description(ref: TrustRef | ProjectionRef) -> Json:
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


def pin(directory: Place, kind: type[Ref]) -> Ref:
    """Return the reference to a directory that :func:`save` wrote; raise ``ModelError`` if it lacks a file."""
    for name in (WEIGHTS, DESCRIPTION):
        if not (directory / name).is_file():
            raise ModelError(f"{directory}: has no {name}; give a directory that a fit saved")
    return kind(uri=str(directory.resolve()), digest=compute_directory_digest(directory))
