"""Without gates, the kernels compile to what they would be if gates had never been written."""

import ast
import importlib.util
import re
from pathlib import Path

import pytest

pytestmark = pytest.mark.ci
KERNELS = Path(__file__).parents[1] / "src" / "lmscaling" / "kernels" / "chunked_triton"


class WithoutGates(ast.NodeTransformer):
    """Removes what is done only where ``GATE`` is not ``"none"``."""

    def visit_If(self, node: ast.If) -> list[ast.stmt] | ast.AST:
        self.generic_visit(node)
        return node.orelse if asks(node.test) else node

    def visit_IfExp(self, node: ast.IfExp) -> ast.AST:
        self.generic_visit(node)
        return node.orelse if asks(node.test) else node


def asks(test: ast.expr) -> bool:
    return ast.unparse(test) in ("GATE != 'none'", "GATE == 'token'")


def without_gates(name: str, folder: Path):
    """The module of a kernel, without its gates."""
    tree = ast.fix_missing_locations(WithoutGates().visit(ast.parse((KERNELS / name).read_text())))
    path = folder / name
    path.write_text(ast.unparse(tree))
    assert "between(" not in path.read_text()
    spec = importlib.util.spec_from_file_location(f"ungated_{path.stem}", path)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def code(launch) -> str:
    """PTX without what depends on where its source lies."""
    from compiled import made

    ptx = made(launch, "sm_90").asm["ptx"]
    ptx = ptx[: ptx.index(".section")] if ".section" in ptx else ptx
    kept = [x for x in ptx.splitlines() if not re.match(r"\s*(\.loc|\.file|//|\$L__tmp)", x)]
    return "\n".join(line.split("//")[0].rstrip() for line in kept)


@pytest.mark.parametrize("name", ["forward.py", "backward.py", "sums.py"])
def test_without_gates_nothing_of_them_is_compiled(name, tmp_path, monkeypatch):
    pytest.importorskip("triton", reason="Triton is not installed: extra test, on Linux")
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    import launched

    bare = without_gates(name, tmp_path)
    every = launched.attention(90, launched.linear, one_pass=True)
    made = [launch for launch in every if hasattr(bare, launch.kernel.__name__)]
    codes = [code(launch) for launch in made]
    ungated = [launch._replace(kernel=getattr(bare, launch.kernel.__name__)) for launch in made]
    assert codes == [code(launch) for launch in ungated]
    gated = made[0]._replace(constants=made[0].constants | {"GATE": "token"})
    assert code(gated) != codes[0]
