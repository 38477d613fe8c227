# Settings that all arms share. Those that an arm changes are in the study file.
block_size = 32
n_embd = 48
eval_interval = 50
