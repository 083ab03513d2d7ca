"""The corpus build: stages in three passes, from raw text to an output folder."""

from dataprep.corpus.build import build
from dataprep.corpus.config import BuildConfig, Eval, Write
from dataprep.corpus.run import BuildResult

__all__ = ["BuildConfig", "BuildResult", "Eval", "Write", "build"]
