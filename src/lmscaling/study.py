"""A study from Python: its losses, laws, comparisons, claims and figures.

    from lmscaling import Study

    study = Study("results/mine")
    study.final()
    study.multiplier("linear", "softmax")
    study.figure("context_scaling").savefig("mine.pdf", bbox_inches="tight")

Tables are data frames; losses are in nats per token, and ``hours`` are productive hours of
training. Laws, gaps and intervals are rows of the store, which figures and report read, too.
Columns ``<name>_low`` and ``<name>_high`` are the ends of the 95 % interval of ``<name>``: infinite
where an end is open, NaN where there is no interval.
``assumed_sd`` is NaN for such an interval; where no seeds were measured it is the standard
deviation between seeds, in nats, that the range assumes, and the range is no confidence interval.
``source`` is ``measured``, or ``published`` for runs of others, with which ours are never mixed.

Needs no PyTorch.
"""

import shutil
import tempfile
import weakref
from contextlib import ExitStack
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
from pandas import DataFrame

from lmscaling.errors import UserError, choose
from lmscaling.fits import tables
from lmscaling.fits.rows import names, number
from lmscaling.store import meanings, published
from lmscaling.store.build import build, connect

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["Study"]

AXES = ("updates", "tokens", "flops", "hours")
"""What a run spends, the columns of ``Study.curves``."""

LAWS = {
    "surface": "surfaces", "time": "time_laws", "size": "best_sizes", "context": "best_contexts",
    "rate": "best_rates", "optimal": "optimal_sizes",
}  # fmt: skip
"""Laws of ``Study.fit``, and their tables."""

SUMMARY = """
    SELECT source, baseline, attention, size, context, status, count(*)::INTEGER AS runs,
        min(n_layer * d_model * d_model) AS volume
    FROM known WHERE branch IS NULL
    GROUP BY source, baseline, attention, size, context, status
    ORDER BY source, attention <> baseline, attention, volume, size, context, status
"""


class Study:
    """The results of one study; reads them and writes nothing into their folder.

    The exports of the store in ``<folder>/store`` are read as figures and report read them. If
    there are none, or with ``fresh``, the store is built from the records and logs in a temporary
    folder, which is deleted with this object: a study that is still training is then as far as its
    logs are. ``lmscaling build-store <folder>`` keeps one.

    Args:
        folder: ``results/<study>``, ``results/published`` or ``results/measured/<device>``.
        fresh: Whether the store is built from the present records and logs. A study of 48 runs
            takes 0.6 CPU seconds, 20 million updates take minutes.

    Raises:
        UserError: The folder has no study, a record is damaged, or another version built the store.

    Examples:
        >>> study = Study("results/published")
        >>> study.attentions
        ['softmax', 'linear']
        >>> study.query("SELECT count(DISTINCT size) AS sizes FROM final").sizes.item()
        3
    """

    folder: Path
    """The folder of results."""
    attentions: list[str]
    """Labels of the attentions, the baseline first."""
    baseline: str
    """The attention that the others are compared with."""
    sizes: list[str]
    """Names of the sizes, by their parameters."""
    contexts: list[int]
    """Training contexts, tokens, ascending."""

    def __init__(self, folder: str | Path, *, fresh: bool = False) -> None:
        self.folder = Path(folder)
        _check_folder(self.folder)
        self._store = self.folder / "store"
        if fresh or not any(self._store.glob("*.parquet")):
            self._store = Path(tempfile.mkdtemp(prefix="lmscaling-"))
            weakref.finalize(self, shutil.rmtree, self._store, ignore_errors=True)
            build(self.folder, self._store)
        opened = ExitStack()  # views are bound once, which takes longer than most queries
        self._db = opened.enter_context(connect(self._store))
        weakref.finalize(self, opened.close)
        rows = self._db.sql(SUMMARY).df()
        self.attentions = rows.attention.unique().tolist()
        self.baseline = rows.baseline.iloc[0] if len(rows) else ""
        self.sizes = rows.sort_values("volume", kind="stable")["size"].unique().tolist()
        self.contexts = sorted(rows.context.unique().tolist())
        counted = rows.groupby(["source", "status"]).runs.sum().sort_values(ascending=False)
        self._counts: dict[Any, int] = counted.to_dict()

    def __repr__(self) -> str:
        """What the study has: runs by status, attentions, sizes, contexts and age of the store."""
        own = {status: n for (source, status), n in self._counts.items() if source == "measured"}
        runs = ", ".join(f"{n:,} {status.replace('_', ' ')}" for status, n in own.items())
        others = sum(self._counts.values()) - sum(own.values())
        names = [f"{a} (baseline)" if a == self.baseline else a for a in self.attentions]
        ends = dict.fromkeys(f"{c:,}" for c in (self.contexts[:1] + self.contexts[-1:]))
        built = datetime.fromtimestamp((self._store / "cells.parquet").stat().st_mtime)
        parts = [
            f"{sum(own.values()):,} runs: {runs}" if own else "",
            f"{others:,} published runs" if others else "",
            f"attentions {', '.join(names)}" if names else "",
            f"sizes {', '.join(self.sizes)}" if self.sizes else "",
            f"contexts {' to '.join(ends)}" if ends else "",
            f"store of {built:%Y-%m-%d %H:%M}",
        ]
        return f"Study({str(self.folder)!r}): {'; '.join(filter(None, parts))}"

    def query(self, sql: str) -> DataFrame:
        """The rows of one SQL statement over the store, in the dialect of DuckDB.

        Only statements that read are allowed. ``tables()`` lists tables and views, with what each
        column means.

        Raises:
            UserError: The statement writes, is none or several, or DuckDB refuses it.
        """
        try:
            kinds = [statement.type.name for statement in self._db.extract_statements(sql)]
            if kinds != ["SELECT"]:
                raise UserError(
                    f"the query has the statements {', '.join(kinds) or 'none'}; allowed: one that "
                    "reads, such as SELECT, FROM, DESCRIBE or SUMMARIZE"
                )
            return self._db.sql(sql).df()
        except duckdb.Error as error:
            problem = " ".join(str(error).partition("\nLINE ")[0].split())
            raise UserError(
                f"the query fails: {problem}; tables() has the names to choose from"
            ) from None

    def tables(self) -> DataFrame:
        """What ``query`` reads: a row for each column of each table and view.

        Returns:
            ``table``, ``column``, ``type`` and ``meaning``, which has the unit.
        """
        found = self._db.sql(
            "SELECT table_name, column_name, data_type FROM duckdb_columns() "
            "WHERE NOT internal ORDER BY table_name, column_index"
        ).fetchall()
        rows = [(*row, meanings.meaning(*row[:2])) for row in found]
        return DataFrame(rows, columns=["table", "column", "type", "meaning"])

    def runs(self) -> DataFrame:
        """All runs of the study, planned, skipped or trained: trunks, branches, published runs.

        Returns:
            The columns of the view ``known``, among them ``run``, ``name``, ``status``
            (``pending``, ``running``, ``interrupted``, ``held``, ``done``, ``diverged``,
            ``exploded``, ``oom``, ``out_of_tokens``, ``skipped``, ...), ``attention``, ``size``,
            ``context`` (tokens), ``seed``, ``lr``, ``branch`` (share of the budget, NaN of a
            trunk), ``updates``, ``tokens``, ``train_seconds``, ``params`` (without embeddings),
            ``is_stale`` and ``message``; ``tables()`` explains them.
        """
        return self.query("FROM known ORDER BY source, place, run")

    def cells(self) -> DataFrame:
        """One row for each attention, size and context, over seeds and learning rates.

        Returns:
            ``source``, ``attention``, ``size``, ``params`` (without embeddings), ``context``
            (tokens); the number of trunks ``planned``, ``started``, ``done`` and ``failed``;
            ``loss``, the mean over the ``seeds`` that spent their budget, each at its best learning
            rate, with ``loss_low`` and ``loss_high``; ``sd``, the standard deviation of one run
            in nats, ``basis`` (``measured`` with seeds of the cell, ``pooled`` from other cells,
            ``assumed``), and ``assumed_sd``.
        """
        return tables.cells(self._db)

    def final(
        self, *, attention: str | None = None, size: str | None = None, context: int | None = None
    ) -> DataFrame:
        """The loss at the end of each run, at the best of the learning rates that were tried.

        Args:
            attention, size, context: Only rows of this one; context in tokens.

        Returns:
            A row for each run: ``name``, ``source``, ``split`` (tokens of the loss: ``validation``,
            or ``train`` for published runs), ``attention``, ``size``, ``params`` (without
            embeddings), ``context`` (tokens), ``seed``, ``lr_scale``, ``status``, ``update``,
            ``tokens``, ``hours``, ``loss``, ``spent`` (share of the budget, NaN of published runs)
            and ``run``. A failed run has no loss. ``loss_low`` and ``loss_high`` bound the expected
            loss over seeds as this run alone tells it, with ``assumed_sd``; NaN of a run that did
            not spend its budget. ``cells()`` has the means over seeds.

        Raises:
            UserError: The study has no such attention, size or context.
        """
        return self._selected(
            tables.final(self._db), attention=attention, size=size, context=context
        )

    def curves(
        self,
        axis: str = "updates",
        *,
        attention: str | None = None,
        size: str | None = None,
        context: int | None = None,
    ) -> DataFrame:
        """Losses along the runs, as the figures of learning curves show them.

        Args:
            axis: What the losses are against: ``updates``, ``tokens``, ``flops`` (counted) or
                ``hours``.
            attention, size, context: Only rows of this one; context in tokens.

        Returns:
            A row for each point: ``split`` (``train``: means over 60 logarithmic intervals without
            spikes; ``validation``; ``decayed``: the ends of branches), ``source``, ``attention``,
            ``size``, ``params``, ``context`` (tokens), ``seed``, ``run``, ``status``, the column of
            the axis, ``loss``, and ``spike``, the highest loss of a spike in the interval or NaN.

        Raises:
            UserError: There is no such axis, or the study has no such attention, size or context.
        """
        if axis not in AXES:
            raise UserError(f"there is no axis {axis!r}; {choose(axis, AXES)}")
        rows = self.query("FROM learning_curves ORDER BY ALL").sort_values(
            ["run", "split", axis], kind="stable"
        )
        others = [name for name in AXES if name != axis]
        rows = rows.drop(columns=others)
        return self._selected(rows, attention=attention, size=size, context=context)

    def fit(
        self,
        law: str,
        *,
        attention: str | None = None,
        size: str | None = None,
        context: int | None = None,
    ) -> DataFrame:
        """Fit a law to the losses of the study, or learn why they have none.

        Args:
            law: ``surface`` L(N, D), ``time`` L(t), ``size`` (the best size by budget), ``context``
                (the best training context), ``rate`` (the best learning rate of a cell) or
                ``optimal`` (the compute-optimal size of budgets in FLOPs by three approaches).
            attention, size, context: Only rows of this one; context in tokens.

        Returns:
            A row for each fit, or for ``size`` each budget of one, with its ``source``,
            ``attention``, ``size`` or ``context``, and its ``schedule``: ``decayed`` losses at the
            ends of branches, ``constant`` ones along trunks and ``unknown`` ones of published runs
            are fitted apart. ``status`` is ``fitted`` or the like, ``why`` the same in words; a
            parameter that the losses do not determine is NaN.
            Parameters have ``_low`` and ``_high`` where the fit has an interval:

            - ``surface``: ``E`` (nats), ``A``, ``B``, ``alpha``, ``beta``, ``a_opt``, of
              which ``N ~ C^a_opt`` is the growth of the best size, and ``g`` where N and D
              interact, from ``points`` of ``runs``; ``farther``, the expected loss at four times
              the largest N and D; ``tests`` of the sum.
            - ``time``: ``E`` (nats), ``k``, ``gamma``, with t in ``unit``, all of this form, and
              without intervals: other forms follow the points as well.
            - ``size``: ``budget`` in ``unit``, ``best`` (parameters), its fitted ``loss``, and
              ``G`` and ``p``, the growth ``G t^p`` with the budget, with the status ``law_status``
              of that law, ``law_why`` in words, and ``law_lack``, its ``lack``.
            - ``optimal``: ``approach`` 1 to 3 of Hoffmann et al. 2022, ``a`` of ``N* ~ C^a``, and
              ``best`` (parameters) at the largest budget, ``compute`` (FLOPs).
            - ``context``: ``best`` (tokens), its fitted ``loss``, and ``lowest``, the tried one
              with the lowest loss.
            - ``rate``: ``rate`` (peak, per update), of ``tried`` rates, ``scale`` times the study's
              rate, with its fitted ``loss`` and ``gain`` over the study's rate (nats).

            ``losses`` says which losses are fitted, ``lack`` is the p-value of the test of lack of
            fit, ``moved`` the result ``without`` the run that moves it most, ``excluded`` names the
            runs that were not fitted. Where the intervals of a row assume different scatters, each
            has its own: ``best_assumed``, ``p_assumed``, ``rate_assumed``. Points of the fitted
            curve are ``curve_x`` and ``curve``, with ``curve_lower`` and ``curve_upper``; of a
            surface ``drawn`` has E, A, B, alpha, beta and g, even where the losses do not determine
            them.

        Raises:
            UserError: There is no such law, attention, size or context, or the rows of the law are
                not by what is asked for.
        """
        if law not in LAWS:
            raise UserError(f"there is no law {law!r}; {choose(law, LAWS)}")
        rows = self.query(f"FROM {LAWS[law]}")
        asked = {"attention": attention, "size": size, "context": context}
        for name, wanted in asked.items():
            if wanted is not None and name not in rows:
                raise UserError(f"the law {law!r} has no row by {name}; leave {name} out")
        return self._selected(rows, **asked)

    def multiplier(
        self,
        attention: str,
        reference: str | None = None,
        *,
        size: str | None = None,
        context: int | None = None,
    ) -> DataFrame:
        """How much more the reference spends than the attention until it has the same loss.

        Args:
            attention: The attention that may be better.
            reference: What it is compared with; the baseline by default.
            size, context: Only rows of this one; context in tokens.

        Returns:
            A row for each source, size and context that has runs of both: ``seeds`` that both
            have, ``status`` and the same in words as ``why``; ``loss``, the lowest that both reach;
            ``updates``, ``flops`` and ``hours``, each spent by the reference over spent by the
            attention (above 1 the attention is the better one), with ``_low`` and ``_high``; NaN
            flops if they are unknown; ``speed``, updates of the attention per update of the
            reference in the same time; ``assumed_sd``; ``sd``, the scatter of a paired gap in nats,
            with ``sd_of``, where that comes from, its ``basis`` and ``degrees`` of freedom. The
            table ``multiplier_levels`` has all losses, ``loss_crossings`` the crossings.

        Raises:
            UserError: The study has no such attention, size or context, or both are the same.
        """
        rows = self._pairs("multipliers", attention, reference)
        return self._selected(rows, size=size, context=context)

    def gap(
        self,
        attention: str,
        reference: str | None = None,
        *,
        size: str | None = None,
        context: int | None = None,
    ) -> DataFrame:
        """The final loss of an attention minus that of a reference, seed by seed.

        Args:
            attention: The attention that may be better.
            reference: What it is compared with; the baseline by default.
            size, context: Only rows of this one, without the mean over cells; context in tokens.

        Returns:
            The mean over cells, whose ``size`` and ``context`` are missing, if there are several
            cells; then a row for each source, size and context: ``cells`` that were averaged,
            ``seeds`` that both have, ``gap`` (nats per token, below 0 the attention is better) with
            ``gap_low`` and ``gap_high``, ``p``, corrected for ``tests`` gaps of the source with the
            baseline, or of other pairs (Holm), NaN if not tested, ``status`` and the same in words
            as ``why``, ``needed`` seeds to decide, ``assumed_sd``, and ``sd``, the scatter of a
            pair in nats, with ``sd_of``, where that comes from, its ``basis`` and ``degrees`` of
            freedom; ``failed`` of the ``ended`` runs of the attention, and the ``failed_share``
            with its interval.

        Raises:
            UserError: The study has no such attention, size or context, or both are the same.
        """
        rows = self._pairs("gaps", attention, reference)
        return self._selected(rows, size=size, context=context)

    def claims(self) -> DataFrame:
        """Verdicts on the claims of the literature by the numbers of the study.

        Returns:
            A row for each claim, source, setup and candidate: ``claim``, its name, ``title``,
            ``candidate``, ``source``, ``setup``, ``verdict`` (``holds``, ``fails``, ``not
            tested``), its ``scope`` (such as ``to 16,384`` tokens, or empty), ``number`` with
            ``number_low``, ``number_high`` and ``assumed_sd``, whose meaning is ``number_is``, and
            ``why``.
        """
        from lmscaling import claims

        columns = ["claim", "title", "candidate", "source", "setup", "verdict", "scope",
                   *names("number"), "assumed_sd", "number_is", "why"]  # fmt: skip
        rows = [
            number("number", one.judgement.number, one.judgement.interval)
            | {
                "claim": one.claim.name, "title": one.claim.title, "source": one.source,
                "candidate": one.roles.get("candidate"), "setup": one.setup,
                "verdict": one.judgement.verdict, "scope": one.judgement.scope,
                "why": one.judgement.why, "number_is": one.claim.number,
            }
            for one in claims.judge_all(self._db)
        ]  # fmt: skip
        return DataFrame(rows, columns=columns)

    def figure(self, name: str) -> "Figure":
        """A figure of the report, drawn anew. It says so where the study has no data for it.

        Args:
            name: Of a figure of the report, such as ``context_scaling``.

        Returns:
            A figure that pyplot does not hold; save it with ``bbox_inches="tight"``, which keeps
            the notes below it. Settings of Matplotlib are as they were.

        Raises:
            UserError: No figure has this name.
        """
        import matplotlib as mpl
        import matplotlib.pyplot as plt

        from lmscaling import figures
        from lmscaling.figures.shared import style

        figures.load(name)
        with mpl.rc_context():
            style.use()
            drawn, _ = figures.draw(name, self._db)
        plt.close(drawn)  # a notebook shows what a cell returns, and open figures as well
        return drawn

    def _pairs(self, table: str, attention: str, reference: str | None) -> DataFrame:
        """The rows of a table that compare two attentions, after a check of both."""
        reference = self.baseline if reference is None else reference
        for name in (attention, reference):
            self._check("attention", name)
        if attention == reference:
            others = [name for name in self.attentions if name != attention]
            raise UserError(f"{attention!r} is compared with itself; {choose('', others)}")
        rows = self.query(f"SELECT * EXCLUDE (in_order, with_baseline) FROM {table}")
        return rows.loc[(rows.attention == attention) & (rows.reference == reference)]

    def _selected(self, rows: DataFrame, **wanted: str | int | None) -> DataFrame:
        """The rows with these values, numbered from 0."""
        for name, value in wanted.items():
            if value is not None:
                self._check(name, value)
                rows = rows.loc[(rows[name] == value).fillna(False).astype(bool)]
        return rows.reset_index(drop=True)

    def _check(self, name: str, wanted: object) -> None:
        known: list[Any] = getattr(self, f"{name}s")
        if wanted not in known:
            raise UserError(f"{self.folder} has no {name} {wanted!r}; {choose(wanted, known)}")


def _check_folder(folder: Path) -> None:
    """Raise UserError if a folder has no study, with the studies that are near."""
    if folder.is_dir() and (published.is_folder(folder) or (folder / "study.json").is_file()):
        return
    marks = ("*/study.json", f"{published.FOLDER}/final_loss.csv")
    near = [folder.parent, folder.parent / "results", folder]
    known = {str(path.parent) for place in near for mark in marks for path in place.glob(mark)}
    problem = "has no study.json" if folder.is_dir() else "does not exist"
    others = choose(folder, sorted(known)) if known else "no study is near it"
    raise UserError(f"{folder} {problem}; give the folder of a study: {others}")
