"""Proof of an output folder: every byte, every row, every label, judged by MindSpore's reader.

    files     every file is there with the hash of the manifest, and no other
    rows      MindDataset reads every row of every shard: number, columns, shapes, int32
    columns   computed again from the ids and audit/rows, whatever the preset, and compared
    totals    the ledger balances, and agrees with the shards and with audit/removed

`repair` mends what can be mended without a build; `single` checks one MindRecord file.
"""

from dataprep.verify.folder import verify
from dataprep.verify.single import verify_file
from dataprep.verify.verdict import Progress, Verdict

__all__ = ["Progress", "Verdict", "verify", "verify_file"]
