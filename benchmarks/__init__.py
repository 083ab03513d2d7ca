"""One script for each hot path: ours and the peer in the same run, a table with the ratio."""
