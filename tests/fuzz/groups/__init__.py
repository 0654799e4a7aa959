"""Groups of cases, a module each.

A group has ``prepare(bundle)``, called once a process, so that imports and models are not in the
time of a case, and ``run(rng, scratch, bundle)``, one case. All that is drawn is drawn from
``rng``, all that is written is written to ``scratch``, and whatever it raises is a failure. Errors
that may come are suppressed with ``mutate.allowed``. ``runner.GROUPS`` names the groups that are
run.
"""
