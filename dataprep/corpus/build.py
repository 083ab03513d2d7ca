"""The build: raw text to an output folder, pass by pass.

PASS A  map     split      -> read -> clean -> sign     cleaned split, signatures, removed
        global  signatures -> who stays                 decisions
PASS B  map     cleaned    -> tokenize                  spill, by output shard
PASS C  reduce  shard      <- its slice of every spill  MindRecord
        global  audit, report, manifest; then it appears in its place
"""

from collections.abc import Sequence

from dataprep.corpus.config import BuildConfig
from dataprep.corpus.passes import Passes
from dataprep.corpus.plan import make_plan
from dataprep.corpus.run import BuildResult, Finish, produce


def build(config: BuildConfig, finish: Sequence[Finish] = ()) -> BuildResult:
    """Builds a corpus; resumes what an earlier, interrupted run of the same config has done.

    `finish`: functions that add files (a report) to the folder before it is published.
    Raises UserError for anything wrong with inputs, config, folders or disk.
    """
    loaded = config.tokenizer.load()
    plan = make_plan(config)
    return produce(Passes(config, plan, loaded), plan.files, [config.tokenizer.path], finish)
