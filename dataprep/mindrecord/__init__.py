"""MindRecord 3.0 shards, written and read without MindSpore.

`layout` sizes header and pages, `encode` turns int32 arrays into rows, `pages` places the rows,
`header` and `index` describe the file, `writer` and `reader` put it all together.
"""

from dataprep.mindrecord.layout import Layout, fit_layout
from dataprep.mindrecord.reader import ShardReader
from dataprep.mindrecord.writer import ShardWriter

__all__ = ["Layout", "ShardReader", "ShardWriter", "fit_layout"]
