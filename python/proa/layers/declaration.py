"""Collects the parameters a model reads, so that loading can be strict."""

from __future__ import annotations

from dataclasses import dataclass, field

from proa.ops.interface import Parameter


@dataclass(frozen=True, slots=True)
class Name:
    """One module's name in both file formats, without `.weight`."""

    safetensors: str
    gguf: str


@dataclass(slots=True)
class Declaration:
    """The parameters declared so far, by name.

    Attributes:
        has_bias: whether the model's files hold the bias of a module.
    """

    has_bias: frozenset[str] = frozenset()
    parameters: dict[str, Parameter] = field(default_factory=dict)

    def weight(self, name: Name, shape: tuple[int, ...], permuted_heads: int = 0, fill: str = "normal") -> Parameter:
        """Declare `<name>.weight`."""
        return self._add(Parameter(f"{name.safetensors}.weight", f"{name.gguf}.weight", shape, permuted_heads, fill))

    def bias(self, name: Name, size: int, permuted_heads: int = 0) -> Parameter:
        """Declare `<name>.bias`."""
        return self._add(Parameter(f"{name.safetensors}.bias", f"{name.gguf}.bias", (size,), permuted_heads, "zeros"))

    def _add(self, parameter: Parameter) -> Parameter:
        assert parameter.name not in self.parameters, f"{parameter.name} is declared twice"
        self.parameters[parameter.name] = parameter
        return parameter
