"""Which changes of a source file count as mutants: operators of cosmic-ray, two of our own, and
the places that are left alone because no test should depend on them.

Left alone are type annotations (but not the limits in calls within them), errors that are raised,
texts for people (f-strings, ``print``, logging and warnings) and ``if TYPE_CHECKING``. So is what
states an invariant and changes nothing while it holds: assertions, ``strict=True`` of ``zip``, and
decorators, for caches and frozen classes without theirs behave alike. cosmic-ray changes no
strings, so docstrings, names of columns and messages stay as they are. Of its operators we leave
out those on ``|``, whose mutants mostly end as an error of their type.
"""

from collections.abc import Iterator
from typing import Any, cast

from cosmic_ray.operators import (
    binary_operator_replacement,
    boolean_replacer,
    break_continue,
    comparison_operator_replacement,
    exception_replacer,
    number_replacer,
    unary_operator_replacement,
    zero_iteration_for_loop,
)
from cosmic_ray.operators.operator import Example, Operator
from parso.python.tree import Name, PythonLeaf

Place = tuple[int, int]
"""Line and column."""

# Nodes of a tree are ``Any``: parso and cosmic-ray have no usable types.

ARITHMETIC = {"arith_expr", "term", "power", "shift_expr"}
"""Kinds of expression with a binary operator; a lone ``*`` in a signature is none."""
SWAPPED = {"min": "max", "max": "min", "any": "all", "all": "any", "ceil": "floor", "floor": "ceil"}
SPEECH = {"print", "log", "logger", "logging", "warnings"}


class PlainAssignment(Operator):
    """``x += y`` becomes ``x = y``."""

    def mutation_positions(self, node: Any) -> Any:
        if isinstance(node, PythonLeaf) and node.value in {"+=", "-=", "*=", "|="}:
            yield node.start_pos, node.end_pos

    def mutate(self, node: Any, index: int) -> Any:
        node.value = "="
        return node

    @classmethod
    def examples(cls) -> Any:
        return (Example("x += 1", "x = 1"),)


class OppositeFunction(Operator):
    """``min`` becomes ``max``, ``any`` becomes ``all``, ``ceil`` becomes ``floor``, and back."""

    def mutation_positions(self, node: Any) -> Any:
        if isinstance(node, Name) and node.value in SWAPPED:
            following = node.get_next_leaf()
            if following is not None and following.get_code().strip() == "(":
                yield node.start_pos, node.end_pos

    def mutate(self, node: Any, index: int) -> Any:
        node.value = SWAPPED[node.value]
        return node

    @classmethod
    def examples(cls) -> Any:
        return (Example("min(x, y)", "max(x, y)"),)


def _chosen() -> list[Operator]:
    arithmetic = {"Add_Sub", "Sub_Add", "Mul_Div", "Div_Mul", "FloorDiv_Mul", "Mod_FloorDiv",
                  "Pow_Mul", "LShift_RShift", "RShift_LShift"}  # fmt: skip
    comparison = {"Eq_NotEq", "NotEq_Eq", "Lt_LtE", "Lt_GtE", "LtE_Lt", "LtE_Gt", "Gt_GtE",
                  "Gt_LtE", "GtE_Gt", "GtE_Lt", "Is_IsNot", "IsNot_Is"}  # fmt: skip
    unary = {"Delete_Not", "Delete_USub", "Delete_Invert"}
    families = (
        (binary_operator_replacement.operators(), arithmetic),
        (comparison_operator_replacement.operators(), comparison),
        (unary_operator_replacement.operators(), unary),
    )
    found = [x for all_, names in families for x in all_ if x.__name__.partition("_")[2] in names]
    assert len(found) == len(arithmetic | comparison | unary)
    return [
        *(operator() for operator in found),
        number_replacer.NumberReplacer(),
        boolean_replacer.ReplaceTrueWithFalse(),
        boolean_replacer.ReplaceFalseWithTrue(),
        boolean_replacer.ReplaceAndWithOr(),
        boolean_replacer.ReplaceOrWithAnd(),
        boolean_replacer.AddNot(),
        break_continue.ReplaceBreakWithContinue(),
        break_continue.ReplaceContinueWithBreak(),
        exception_replacer.ExceptionReplacer(),
        zero_iteration_for_loop.ZeroIterationForLoop(),
        PlainAssignment(),
        OppositeFunction(),
    ]


OPERATORS = _chosen()


def mutations(nodes: list[Any]) -> Iterator[tuple[Place, tuple[Operator, int]]]:
    """Place, operator and number of occurrence of every mutant of a file.

    Args:
        nodes: All nodes of its tree in the order of ``cosmic_ray.ast.ast_nodes``.
    """
    for operator in OPERATORS:
        occurrence = 0
        for node in nodes:
            for start, _ in cast(Any, operator).mutation_positions(node):
                if not _left_alone(node):
                    yield start, (operator, occurrence)
                occurrence += 1


def _left_alone(node: Any) -> bool:
    if node.type == "operator" and node.value in {"*", "**"} and node.parent.type not in ARITHMETIC:
        return True
    first_line = node.get_code(include_prefix=False).partition("\n")[0]
    if node.type == "assert_stmt" or "TYPE_CHECKING" in first_line:
        return True
    below, above = node, node.parent
    while above is not None:
        if above.type in {"fstring", "raise_stmt", "assert_stmt", "decorator"}:
            return True
        if above.type == "argument" and above.children[0].get_code().strip() == "strict":
            return True
        if above.type == "trailer" and above.children[0].value == "(" and _is_annotation(above):
            return False
        if _annotates(below, above):
            return True
        if above.type in {"power", "atom_expr"} and above.children[0].get_code().strip() in SPEECH:
            return True
        below, above = above, above.parent
    return False


def _annotates(below: Any, above: Any) -> bool:
    """Whether a node stands where its parent has an annotation."""
    before = below.get_previous_sibling()
    sign = before.value if isinstance(before, PythonLeaf) else ""
    return (above.type in {"annassign", "tfpdef", "param"} and sign == ":") or (
        above.type == "funcdef" and sign == "->"
    )


def _is_annotation(node: Any) -> bool:
    while node.parent is not None:
        if _annotates(node, node.parent):
            return True
        node = node.parent
    return False
