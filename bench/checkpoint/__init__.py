"""What a checkpoint costs, ours beside torch.save and torch's distributed checkpoint. See README.md.

contestants  who takes part, and how each is called
turn         one contestant's turn, in a process of its own: saves and restores, measured
ours, plain, dcp, bare   the contestants; the last one is the ceiling: bare copies and bare sockets
state, meter what is saved, and what is read off before and after
ranks, lesson, gpu       other courses: several ranks, the steps of a training, a GPU
environment  Pythons and processes
figures, goals, table, plot   medians and spreads, what they should be, and how they are shown
"""
