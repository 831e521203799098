"""Which runs to train next: the design that shrinks the interval of one answer most for its price.

``draws`` draws truths from a prior or from the runs that are there, ``questions`` says how wide the
interval of the report would be after a design, ``search`` looks for the design, ``check`` trains it
in simulation and asks the report's own estimator, and ``overlay`` writes it as a study file.

Legend: ``M`` truths, ``C`` candidates, ``n`` designs; a design is a number of seeds for each
candidate.
"""
