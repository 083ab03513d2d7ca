"""Which columns a row is stored as: the presets, and lists of one's own.

S = pack.seq_length, K = pack.max_documents (only when documents are isolated)

mindformers     input_ids[S] labels[S] loss_mask[S] position_ids[S] (actual_seq_len[K])
legacy          input_ids[S+1]                  the model slices inputs and targets
legacy_labels   input_ids[S+1] labels[S+1]      not shifted: a target keeps its own place
compact         input_ids[S+1] segments[K]      all else follows from these two
                input_ids[S+1] loss_mask[S] segments[1]      documents not isolated
a list          some of the mindformers columns, in the order given
"""

from collections.abc import Sequence
from typing import Literal

from dataprep.errors import UserError

Preset = Literal["mindformers", "legacy", "legacy_labels", "compact"]
CUSTOM = "custom"
SHIFTED = ("input_ids", "labels", "loss_mask", "position_ids")
ENDS, SEGMENTS = "actual_seq_len", "segments"


def preset_name(asked: Preset | Sequence[str]) -> str:
    """What the manifest calls it: the preset's name, or "custom"."""
    return asked if isinstance(asked, str) else CUSTOM


def check_columns(asked: Preset | Sequence[str], isolate_documents: bool) -> None:
    """Raises UserError, naming write.columns, unless such rows can be stored."""
    if isinstance(asked, str):
        return
    known = (*SHIFTED, ENDS)
    for name in asked:
        if name not in known:
            raise UserError(
                f"write.columns: there is no column {name!r}; there are {', '.join(known)}"
            )
    if len(set(asked)) < len(asked):
        raise UserError(f"write.columns names a column twice: {', '.join(asked)}")
    if "input_ids" not in asked:
        raise UserError("write.columns must name input_ids: rows without tokens train nothing")
    if ENDS in asked and not isolate_documents:
        raise UserError(
            f"write.columns: {ENDS} holds the ends of isolated documents; set "
            "pack.isolate_documents: true, or leave it out"
        )
    if ENDS in asked and asked[-1] != ENDS:
        raise UserError(f"write.columns: MindFormers wants {ENDS} last; put it there")


def column_lengths(asked: Preset | Sequence[str], seq_length: int, ends: int) -> dict[str, int]:
    """Column name -> length of its int32 array, in loading order.

    `ends`: length of `actual_seq_len`, 0 when documents are not isolated.
    """
    if asked == "legacy":
        return {"input_ids": seq_length + 1}
    if asked == "legacy_labels":
        return {"input_ids": seq_length + 1, "labels": seq_length + 1}
    if asked == "compact":
        # Without isolation, document borders are known from the mask alone.
        mask = {} if ends else {"loss_mask": seq_length}
        return {"input_ids": seq_length + 1, **mask, SEGMENTS: max(ends, 1)}
    names = (*SHIFTED, *((ENDS,) if ends else ())) if asked == "mindformers" else asked
    return {name: ends if name == ENDS else seq_length for name in names}
