"""The tokenizer of a manifest: still the same file, and which of its ids no text can make."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from dataprep.errors import UserError
from dataprep.files import sha256_file
from dataprep.manifest import Manifest
from dataprep.tokens import load
from dataprep.verify.columns import Special
from dataprep.verify.verdict import Verdict


def check_tokenizer(manifest: Manifest, verdict: Verdict) -> Special:
    """Checks the file's hash, where it is here; returns what ids may stand where.

    A manifest without a tokenizer's config was not made from text: any id may stand anywhere.
    """
    info = manifest.tokenizer
    config = manifest.config.get("tokenizer") or {}
    bos, eos = bool(config.get("add_bos")), bool(config.get("add_eos"))
    special = Special(
        vocab_size=info.vocab_size,
        never=np.full(3, -1, np.int32),
        pad=info.pad_id,
        bos=info.bos_id if bos and info.bos_id is not None else -1,
        eos=info.eos_id if eos else -1,
    )
    if not info.path:
        verdict.notes.append("imported without its tokenizer, which could not be checked")
        return special
    path = Path(info.path)
    try:
        same = path.is_file() and sha256_file(path) == info.sha256
    except OSError as e:
        verdict.notes.append(f"tokenizer {path} cannot be read ({e.strerror}): it was not checked")
        return special
    if not path.is_file():
        verdict.notes.append(
            f"tokenizer {path} is not here: its hash was not checked, nor whether special ids "
            "stand inside of documents"
        )
    elif not same:
        verdict.defects.append(
            f"tokenizer {path} is not the one that made the ids: SHA-256 differs"
        )
    elif config:
        never = _never_text(manifest, config)
        special.never[: len(never)] = never
    return special


def _never_text(manifest: Manifest, config: Mapping[str, Any]) -> list[int]:
    """Those of the special ids that the tokenizer does not make of their own name."""
    info = manifest.tokenizer
    names = [config.get(f"{name}_token") for name in ("eos", "pad", "bos")]
    try:
        encoder = load(info.path, *names).encoder
    except UserError:
        return []  # of another version of a library: the hash is right
    ids = {i for i in (info.pad_id, info.eos_id, info.bos_id) if i is not None}
    return sorted(i for i in ids if i not in encoder.encode([encoder.piece(i)])[0])
