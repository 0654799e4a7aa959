"""Batches, worker threads and CPU cores."""

# Seconds that a thread waits for the interpreter, for a process of our own. Threads that decode
# need it between two steps or batches, for less than 0.1 ms; by default they wait 5 ms for it
# whenever the thread that reads and writes is busy.
SWITCH_INTERVAL = 0.0002
