"""The corpus build: stages in three passes, from raw text to an output folder."""

from dataprep.corpus.build import BuildResult, build
from dataprep.corpus.config import BuildConfig, Eval, Write

__all__ = ["BuildConfig", "BuildResult", "Eval", "Write", "build"]
