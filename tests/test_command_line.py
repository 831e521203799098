"""Targets after ``--configfile``, which takes all words that follow it for study files."""

import pytest

from snakemake_logger_plugin_lmscaling import targets_first


@pytest.mark.parametrize(
    ("typed", "read"),
    [
        ("--configfile a.yaml figures", "figures --configfile a.yaml"),
        ("-n --configfile a.yaml b.yml x --cores 2", "x -n --configfile a.yaml b.yml --cores 2"),
        ("--configfiles a.json results/a/b.json -p", "results/a/b.json --configfiles a.json -p"),
        ("--configfile a.yaml -- figures", "--configfile a.yaml -- figures"),
        ("figures --configfile a.yaml", "figures --configfile a.yaml"),
        ("--configfile figures", "--configfile figures"),
        ("--profile slurm figures", "--profile slurm figures"),
    ],
)  # fmt: skip
def test_targets_after_study_files_come_first_and_nothing_else_moves(typed, read):
    assert targets_first(typed.split()) == read.split()
