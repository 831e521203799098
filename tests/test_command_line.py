"""Targets and ``--set`` after ``--configfile``, which takes all words that follow it for files."""

import pytest
from snakemake.cli import parse_config
from snakemake.settings.types import dict_to_key_value_args

from lmscaling.config import study_file
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
        ("--set a.b=1 figures", """figures --config set=a.b=1"""),
        ("-n --set=a=1 --set b=2", """-n --config set=a=1&b=2"""),
        ("--config c=1 --set a=1 -n", """--config set=a=1 c=1 -n"""),
        ("--configfile x.yaml --set a=1 -- t", """--configfile x.yaml --config set=a=1 -- t"""),
        ("--configfile x.yaml t --set", """t --configfile x.yaml --config set=="""),
        ("-- --set a=1", "-- --set a=1"),
    ],
)  # fmt: skip
def test_overrides_reach_snakemake_in_one_value_of_its_configuration(typed, read):
    assert " ".join(rewritten(typed.split())) == read


def test_what_is_set_survives_the_way_to_the_jobs_of_snakemake():
    texts = ["axes.context=[128]", "a={b: 'c', d: \"e\"}", "s=it's 5% & ü", "x=1"]
    words = [word for text in texts for word in ("--set", text)]
    *_, option, first = rewritten(words)
    assert option == "--config"
    (again,) = dict_to_key_value_args(parse_config([first]), repr_obj=True)
    assert study_file.passed(parse_config([again])["set"]) == texts
