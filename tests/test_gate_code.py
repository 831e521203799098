"""Without gates, the kernels compile to what they would be if gates had never been written."""

import ast
import importlib.util
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from lmscaling.kernels.chunked_triton.plan import Shape, configured

pytestmark = pytest.mark.ci
KERNELS = Path(__file__).parents[1] / "src" / "lmscaling" / "kernels" / "chunked_triton"
SHAPE = Shape(heads=12, key=64, value=64, feature_map="softplus", normalize=True)


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


def code(kernel, build) -> str:
    """PTX without what depends on where its source lies."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    names = kernel.arg_names
    source = ASTSource(
        fn=kernel,
        signature={n: build.signature.get(n, "constexpr") for n in names},
        constexprs={(names.index(n),): value for n, value in build.constants.items()},
        attrs={(i,): [["tt.divisibility", 16]] for i, n in enumerate(names) if n.endswith("_ptr")},
    )
    options = {"num_warps": build.warps, "num_stages": build.stages}
    ptx = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options).asm["ptx"]
    ptx = ptx[: ptx.index(".section")] if ".section" in ptx else ptx
    kept = [x for x in ptx.splitlines() if not re.match(r"\s*(\.loc|\.file|//|\$L__tmp)", x)]
    return "\n".join(line.split("//")[0].rstrip() for line in kept)


@pytest.mark.parametrize("name", ["forward.py", "backward.py", "sums.py"])
def test_without_gates_nothing_of_them_is_compiled(name, tmp_path, monkeypatch):
    pytest.importorskip("triton", reason="Triton is not installed: extra test, on Linux")
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    from lmscaling.kernels.chunked_triton import launch

    plan = configured(90, torch.bfloat16, SHAPE, segments=2).in_one_pass()
    bare = without_gates(name, tmp_path)
    made = [
        b for b in launch.builds(SHAPE, torch.bfloat16, plan) if hasattr(bare, b.kernel.__name__)
    ]
    assert made
    codes = [code(build.kernel, build) for build in made]
    assert codes == [code(getattr(bare, build.kernel.__name__), build) for build in made]
    gated = launch.builds(replace(SHAPE, gate="token"), torch.bfloat16, plan)
    other = next(build for build in gated if build.kernel is made[0].kernel)
    assert code(other.kernel, other) != codes[0]
