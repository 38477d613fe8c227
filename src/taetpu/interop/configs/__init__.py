"""Configs of other training systems, translated into study files. Nothing in them is executed."""
