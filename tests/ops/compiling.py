"""Triton kernels compiled for GPUs that are not there."""

from typing import Any

OPTIONS = ("num_warps", "maxnreg", "enable_fp_fusion")


def compile_kernel(kernel: Any, types: list[str], settings: dict[str, Any], capability: int) -> Any:
    """
    Compile as a launch would.

    Args:
        types: of the arguments that are no constants, in their order: `*bf16`, `i32` and the like, with `:16` behind
            them where 16 divides the address or number, as Triton writes it.
        settings: constants and options.
        capability: 80 for sm_80.
    """
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    options = {name: value for name, value in settings.items() if name in OPTIONS}
    constants = {name: value for name, value in settings.items() if name not in OPTIONS}
    remaining = iter(types)
    signature = {name: "constexpr" if name in constants else next(remaining) for name in kernel.arg_names}
    divisible = {(i,): [["tt.divisibility", 16]] for i, kind in enumerate(signature.values()) if kind.endswith(":16")}
    signature = {name: kind.removesuffix(":16") for name, kind in signature.items()}
    source = ASTSource(kernel, signature, constexprs=constants, attrs=divisible)
    return triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)
