"""What people run: short scripts over `dataprep` and `training`."""
