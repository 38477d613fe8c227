"""Training code other than taetpu: its commands are run, and what they report is read. The package never imports JAX.

`process` runs a command and says how it ended, with the help of `supervisor`; `output` stores what it prints. `metrics`
reads values from the output and from files that grow. `folders` reads the results of trackers and trainers as
`records`.
"""
