"""Which changes of a source file count as mutants: operators of cosmic-ray, one of our own, and
the places that are left alone because no test should depend on them.

Left alone are type annotations (but not the limits in calls within them), errors that are raised,
texts for people (f-strings, ``print``, logging and warnings) and ``if TYPE_CHECKING``. So is what
states an invariant and changes nothing while it holds: assertions, ``strict=True`` of ``zip``, and
decorators, for caches and frozen classes without theirs behave alike. Functions that Triton
compiles run on a GPU, or slowly in its interpreter. cosmic-ray changes no strings, so docstrings,
names of columns and messages stay as they are. Of its operators we leave out those on ``|``, whose
mutants mostly end as an error of their type.
"""

from collections.abc import Iterator
from typing import Any, cast

from cosmic_ray.operators.operator import Example, Operator
from cosmic_ray.plugins import get_operator
from parso.python.tree import PythonLeaf

Place = tuple[int, int]
"""Line and column."""

# Nodes of a tree are ``Any``: parso and cosmic-ray have no usable types.

ARITHMETIC = {"arith_expr", "term", "power", "shift_expr"}
"""Kinds of expression with a binary operator; a lone ``*`` in a signature is none."""
FUNCTIONS = {"min": "max", "max": "min", "any": "all", "all": "any", "ceil": "floor",
             "floor": "ceil"}  # fmt: skip
ASSIGNMENTS = {"+=", "-=", "*=", "|="}
SPEECH = {"print", "log", "logger", "logging", "warnings"}


class Opposite(Operator):
    """``min`` becomes ``max`` and the like, ``x += y`` becomes ``x = y``."""

    def mutation_positions(self, node: Any) -> Any:
        called = node.type == "name" and node.get_next_leaf().get_code().strip() == "("
        if isinstance(node, PythonLeaf) and node.value in (FUNCTIONS if called else ASSIGNMENTS):
            yield node.start_pos, node.end_pos

    def mutate(self, node: Any, index: int) -> Any:
        node.value = FUNCTIONS.get(node.value, "=")
        return node

    @classmethod
    def examples(cls) -> Any:
        return Example("x += 1", "x = 1"), Example("min(x, y)", "max(x, y)")


NAMES = (
    *("ReplaceBinaryOperator_" + pair for pair in (
        "Add_Sub", "Sub_Add", "Mul_Div", "Div_Mul", "FloorDiv_Mul", "Mod_FloorDiv", "Pow_Mul",
        "RShift_LShift", "LShift_RShift")),
    *("ReplaceComparisonOperator_" + pair for pair in (
        "Eq_NotEq", "NotEq_Eq", "Lt_LtE", "Lt_GtE", "LtE_Lt", "LtE_Gt", "Gt_LtE", "Gt_GtE",
        "GtE_Lt", "GtE_Gt", "Is_IsNot", "IsNot_Is")),
    *("ReplaceUnaryOperator_Delete_" + sign for sign in ("USub", "Invert", "Not")),
    "NumberReplacer", "ReplaceTrueWithFalse", "ReplaceFalseWithTrue", "ReplaceAndWithOr",
    "ReplaceOrWithAnd", "AddNot", "ReplaceBreakWithContinue", "ReplaceContinueWithBreak",
    "ExceptionReplacer", "ZeroIterationForLoop",
)  # fmt: skip
OPERATORS: list[Operator] = [*(get_operator(f"core/{name}")() for name in NAMES), Opposite()]


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
        if above.type == "decorated" and "triton.jit" in above.children[0].get_code():
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
