"""What people run: short scripts over `dataprep` and `training`."""

import os

# MindSpore's own log, below critical: expected failures are told in one line by the scripts.
os.environ.setdefault("GLOG_v", "4")
