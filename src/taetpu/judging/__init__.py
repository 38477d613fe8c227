"""Verdicts on results of training code other than taetpu: tables, and folders of trackers and other tools.

The package never imports JAX. `programs.records` is the form in which every source is read.
"""
