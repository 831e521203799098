"""All that one device can tell, by one command that stops in time and goes on where it stopped.

``plan`` says what there is to do as small pieces, each a command of its own process and a file that
says that it is done; ``session`` does as many as a call has minutes for. Numbers come from a study
file; records lie in a folder that is laid out like that of any study.
"""
