"""Targets and ``--set`` after ``--configfile``, which takes all words that follow it for files."""

import pytest

from snakemake_logger_plugin_lmscaling import rewritten, targets_first


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


@pytest.mark.parametrize(
    ("typed", "read"),
    [
        ("--set a.b=1 figures", """figures --config set=["a.b=1"]"""),
        ("-n --set=a=1 --set b=2", """-n --config set=["a=1", "b=2"]"""),
        ("--config c=1 --set a=1 -n", """--config set=["a=1"] c=1 -n"""),
        ("--configfile x.yaml --set a=1 -- t", """--configfile x.yaml --config set=["a=1"] -- t"""),
        ("--configfile x.yaml t --set", """t --configfile x.yaml --config set=[""]"""),
        ("-- --set a=1", "-- --set a=1"),
    ],
)  # fmt: skip
def test_overrides_reach_snakemake_in_one_value_of_its_configuration(typed, read):
    assert " ".join(rewritten(typed.split())) == read
