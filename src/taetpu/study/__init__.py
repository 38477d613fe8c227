"""Running a study from end to end: train the missing runs, then analyse and report."""
