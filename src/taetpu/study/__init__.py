"""A study from end to end: what is missing is trained, then analysed and reported."""
