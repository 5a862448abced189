"""Cost of checkpoints: Holdfast, torch.save and torch's distributed checkpoint.

See README.md.

    candidates     the compared programs and their names
    trial          one trial of a candidate in a separate process: measured saves and restores
    holdfast_candidate, torch_save, dcp, hardware_limits   the candidates; the last one is the upper limit
    state, process_stats   the saved state, and measurements of a process
    ranks, training_interference, gpu   other measurements: several ranks, training steps, a GPU
    environment    interpreters and processes
    statistics, table, plot   medians, ranges and goals, and their display
"""
