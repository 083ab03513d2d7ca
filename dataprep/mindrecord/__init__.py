"""MindRecord 3.0 shards, written and read without MindSpore.

`layout` sizes header and pages, `encode` turns int32 arrays into rows and `decode` back, `pages`
places the rows, `header` and `index` describe the file, `writer` and `reader` put it all together,
`source` reads many shards as one. `lanes` has the vectors of the hot loops.
"""

from dataprep.mindrecord.ahead import map_ahead
from dataprep.mindrecord.header import Field, Layout
from dataprep.mindrecord.layout import fit_layout
from dataprep.mindrecord.reader import ShardReader
from dataprep.mindrecord.rebuild import rebuild_index
from dataprep.mindrecord.source import IndexableSource
from dataprep.mindrecord.writer import ShardWriter

__all__ = [
    "Field",
    "IndexableSource",
    "Layout",
    "ShardReader",
    "ShardWriter",
    "fit_layout",
    "map_ahead",
    "rebuild_index",
]
