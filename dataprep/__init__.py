"""Raw text to verified, training-ready MindRecord shards.

Reading order is the data's order: readers, clean, dedup, tokens, pack, mindrecord, manifest, run by
engine. Importing this package needs no MindSpore.
"""

from dataprep.errors import UserError
from dataprep.ledger import Ledger
from dataprep.manifest import Manifest
from dataprep.version import __version__

__all__ = ["Ledger", "Manifest", "UserError", "__version__"]
