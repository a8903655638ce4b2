"""The road as people walk it today, in the lab: the baseline that EdgeLink is tested and measured against."""
