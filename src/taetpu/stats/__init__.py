"""From runs to verdicts: `model` (effects with intervals), `verdict` (what they amount to), `analyse` (a study's folder
in, `results.json` out), `numbers` (figures as text). Importing any of it imports no jax."""
