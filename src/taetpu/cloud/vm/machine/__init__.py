"""What runs on a TPU machine itself: `processes` (who is at work), `agent` (jobs), `guard` (the end of the machine).

The startup-script carries these files there. They use the standard library alone and run on Python 3.8, the oldest that
a TPU image has.
"""
