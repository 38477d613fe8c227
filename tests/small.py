"""Small studies for tests: two arms on two seeds train in seconds."""

STUDY = """\
study: small
base:
  task: {kind: copy, seq_len: 16, symbols: 5, min_length: 2, max_length: 6, eval_size: 32}
  model: {dim: 16, num_layers: 1, mixer: {kind: attention, num_heads: 2}}
  train: {steps: 20, batch_size: 4, eval_every: 10, log_every: 4, sample: {tokens: 4}, metrics: {gradient-norm: {every: 6}}}
seeds: 2
arms:
  low-lr: {train.optimizer.lr: 1e-4}
"""  # noqa: E501 (other tests name its lines)

# The smallest study, for tests with many runs.
TINY = """\
study: tiny
base:
  task: {kind: copy, seq_len: 8, symbols: 4, min_length: 2, max_length: 3, eval_size: 8}
  model: {dim: 8, num_layers: 1, mixer: {kind: attention, num_heads: 2}}
  train: {steps: 6, batch_size: 4, eval_every: 6, log_every: 6, sample: none}
"""
