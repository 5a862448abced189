"""What a checkpoint costs, ours beside torch.save and torch's distributed checkpoint. See README.md.

candidates     the programs that are compared, and their names
trial          one trial of a candidate, in a process of its own: measured saves and restores
holdfast_candidate, torch_save, dcp, hardware_limits   the candidates; the last one is the ceiling: plain copies and plain sockets
state, process_stats   what is saved, and what is measured before and after
ranks, training_interference, gpu   other courses: several ranks, the steps of a training, a GPU
environment    interpreters and processes
statistics, table, plot   medians and spreads, their goals, and how they are shown
"""
