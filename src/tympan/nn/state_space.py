"""A linear state space model per channel: a convolution in training, a recurrence in the search (S4, Gu et al. 2022).

    x'(t) = A x(t) + B u(t),  y(t) = 2 Re(C x(t)),  A = diag(w) - P P*

The bilinear transform gives x_k = Ad x_(k-1) + Bd u_k. A state consists of conjugate pairs, of which half is stored.
Shapes: H channels share T copies of (w, P, B), where T divides H; N states, n = N / 2 of them stored.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from tympan.errors import UserError
from tympan.nn.full_precision import at_least_float32, full_precision

KERNEL_LENGTH = 256
"""New models store C for sequences of this length; longer ones need powers of Ad."""
MOST_LENGTH = 1 << 14
"""Highest L of a file. The memory of a kernel is proportional to it, and no text has so many tokens."""


@dataclass(frozen=True)
class Recurrence:
    """The discretized model for single steps, which cost O(n) per channel. All tensors are (H, n), complex.

    A step solves (2/dt - A) x_k = (2/dt + A) x_(k-1) + 2 B u_k, with Woodbury's formula for the low-rank part.
    """

    plus: Tensor
    """2/dt + w."""
    inverse: Tensor
    """1 / (2/dt - w)."""
    column: Tensor
    """P."""
    row: Tensor
    """P* inverse / (1 + P* inverse P)."""
    entry: Tensor
    """2 B."""
    readout: Tensor
    """2 C."""

    def advance(self, state: Tensor, u: Tensor | None = None) -> Tensor:
        """States (..., H, n) and inputs (..., H) -> the next states."""
        target = self.plus * state - self.column * _sum_of_pairs(self.column.conj() * state)
        if u is not None:
            target = target + self.entry * u.unsqueeze(-1)
        return self.inverse * (target - self.column * _sum_of_pairs(self.row * target))

    def read(self, state: Tensor) -> Tensor:
        """States (..., H, n) -> outputs (..., H)."""
        return (self.readout * state).real.sum(-1)


class StateSpace(nn.Module):
    """H models with ESPnet2's parameter names, and their two forms `kernel` and `recurrence`.

    If the buffer `L` is not 0, `C` holds C (I - Ad^L): the kernel of L values then needs no power of Ad. L never
    changes. This differs from ESPnet2 on purpose, which sets L to the length of the first batch and doubles it,
    changing C, when a longer batch arrives. There the weights depend on the process and on the texts that are decoded.

    `lr` is the learning rate of all parameters but C (`own_learning_rates`). With 0 they are not trained.
    """

    L: Tensor
    C: Tensor
    log_dt: Tensor
    B: Tensor
    P: Tensor
    inv_w_real: Tensor
    w_imag: Tensor

    def __init__(
        self, channels: int, *, states: int, copies: int, dt_min: float, dt_max: float, lr: float | None
    ) -> None:
        super().__init__()
        assert channels % copies == 0, (channels, copies)
        self.channels, self.lr, self.dt_range = channels, lr, (dt_min, dt_max)
        half = states // 2
        self.register_buffer("L", torch.tensor(KERNEL_LENGTH))
        self._stored = KERNEL_LENGTH
        """The value of L, so that no step reads a tensor from the device."""
        self.C = nn.Parameter(torch.empty(1, channels, half, 2))
        self._add("log_dt", channels)
        self._add("B", 1, copies, half, 2)
        self._add("P", 1, copies, half, 2)
        self._add("inv_w_real", copies, half)
        self._add("w_imag", copies, half)
        self._frozen: Recurrence | None = None
        self.reset_own_parameters()

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *others: Any) -> None:
        length = state_dict.get(f"{prefix}L", self.L)
        if length.shape == self.L.shape and not (length.isreal() and 0 <= length.real <= MOST_LENGTH):
            raise UserError(
                f"{prefix}L must be between 0 and {MOST_LENGTH}, found {length.item()}: the file is damaged"
            )
        super()._load_from_state_dict(state_dict, prefix, *others)
        self._stored = int(self.L)

    def _add(self, name: str, *shape: int) -> None:
        if self.lr == 0:
            self.register_buffer(name, torch.empty(shape))
        else:
            self.register_parameter(name, nn.Parameter(torch.empty(shape)))

    @torch.no_grad()
    def reset_own_parameters(self) -> None:
        """HiPPO-LegS with random step sizes and a random output."""
        w, p, b = hippo_legs(2 * self.C.size(2))
        self.B.copy_(torch.view_as_real(b))
        self.P.copy_(torch.view_as_real(p))
        self.inv_w_real.copy_(torch.log(-w.real))
        self.w_imag.copy_(w.imag)
        low, high = (math.log(bound) for bound in self.dt_range)
        self.log_dt.uniform_(low, high)
        c, _ = self._for_length(torch.randn(self.C.shape[1:3], dtype=torch.cfloat), 0, KERNEL_LENGTH)
        self.C.copy_(torch.view_as_real(c))
        self.L.fill_(KERNEL_LENGTH)
        self._stored = KERNEL_LENGTH

    def own_learning_rates(self) -> dict[str, float | None]:
        """The parameters without weight decay, with their learning rate; None: that of the optimizer."""
        return {} if self.lr == 0 else dict.fromkeys(("log_dt", "B", "P", "inv_w_real", "w_imag"), self.lr)

    def freeze(self) -> None:
        """The weights no longer change from now on."""
        self._frozen = self.recurrence()

    def kernel(self, length: int) -> Tensor:
        """(length, H): the response to an impulse, from its generating function at the roots of unity."""
        w, p, b, dt = self._dynamics()
        c, stored = self._for_length(_complex(self.C)[0], self._stored, length)
        angle = torch.arange(stored // 2 + 1, device=c.device, dtype=dt.dtype) * (-2 * math.pi / stored)
        root = torch.polar(torch.ones_like(angle), angle)
        # The usual variable 2 (1 - root) / (1 + root) is infinite at -1, so both parts stay separate.
        above, below = 1 + root, 2 * (1 - root)
        weights = torch.stack([b * c, b * p.conj(), p * c, p * p.conj()], dim=1) * dt.unsqueeze(-1)  # (H, 4, n)
        poles = (w * dt).unsqueeze(-1)
        sums = weights @ (below - above * poles).reciprocal()
        sums = sums + weights.conj() @ (below - above * poles.conj()).reciprocal()
        direct, into, out_of, around = sums.unbind(1)  # the last three belong to the low-rank part
        spectrum = 2 * (direct - above * into * out_of / (1 + above * around))
        kernels: Tensor = torch.fft.irfft(spectrum, n=stored)
        return kernels[:, :length].transpose(0, 1)

    @torch.no_grad()
    def recurrence(self) -> Recurrence:
        """The form for single steps."""
        if self._frozen is not None:
            return self._frozen
        with full_precision(self.C):
            return self._recurrence()

    def _recurrence(self) -> Recurrence:
        c, stored = _complex(self.C)[0], self._stored
        steps = self._steps(c)
        if stored > 0:
            power = torch.linalg.matrix_power(_dense(steps), stored)
            identity = torch.eye(power.size(-1), dtype=power.dtype, device=power.device)
            steps = self._steps(_from_row(torch.linalg.solve(identity - power, _row(c), left=False)))
        return steps

    def _steps(self, c: Tensor) -> Recurrence:
        w, p, b, dt = self._dynamics()
        inverse = (2 / dt - w).reciprocal()
        row = p.conj() * inverse
        return Recurrence(
            plus=2 / dt + w,
            inverse=inverse,
            column=p,
            row=row / (1 + _sum_of_pairs(row * p)),
            entry=2 * b,
            readout=2 * c,
        )

    def _for_length(self, c: Tensor, stored: int, length: int) -> tuple[Tensor, int]:
        """C (I - Ad^m) and m >= length, from those of `stored`: C (I - Ad^2m) = C (I - Ad^m) (I + Ad^m)."""
        if stored >= length:
            return c, stored
        row, step = _row(c), _dense(self._steps(c))
        power = torch.linalg.matrix_power(step, stored or length)
        if stored == 0:
            return _from_row(row - row @ power), length
        while stored < length:
            row, stored = row + row @ power, 2 * stored
            power = power @ power
        return _from_row(row), stored

    def _dynamics(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """w, P and B of every channel (H, n), and dt (H, 1)."""
        w = torch.complex(-at_least_float32(self.inv_w_real).exp(), at_least_float32(self.w_imag))
        repeats = self.channels // w.size(0)
        p, b = (_complex(item)[0].repeat(repeats, 1) for item in (self.P, self.B))
        return w.repeat(repeats, 1), p, b, at_least_float32(self.log_dt).exp().unsqueeze(-1)


def convolve(u: Tensor, kernel: Tensor) -> Tensor:
    """Causal convolution of u (batch, length, H) with a kernel (length, H)."""
    length = u.size(1)
    spectrum = torch.fft.rfft(u, n=2 * length, dim=1) * torch.fft.rfft(kernel, n=2 * length, dim=0)
    result: Tensor = torch.fft.irfft(spectrum, n=2 * length, dim=1)
    return result[:, :length]


def hippo_legs(states: int) -> tuple[Tensor, Tensor, Tensor]:
    """w, P and B (n,) of HiPPO-LegS (Gu et al. 2020) in the basis in which A + P P* is diagonal."""
    order = torch.arange(states, dtype=torch.float64)
    scale = (2 * order + 1).sqrt()
    low_rank = (order + 0.5).sqrt()
    a = -(torch.outer(scale, scale).tril(-1) + torch.diag(order + 1))
    skew = a + torch.outer(low_rank, low_rank) + 0.5 * torch.eye(states, dtype=torch.float64)
    frequency, basis = torch.linalg.eigh(-1j * skew)  # ascending: the first half has the conjugates in the second
    half = basis[:, : states // 2].conj().T
    w = torch.complex(torch.full_like(frequency, -0.5), frequency)[: states // 2]
    return w.to(torch.cfloat), (half @ low_rank.to(half)).to(torch.cfloat), (half @ scale.to(half)).to(torch.cfloat)


def _sum_of_pairs(values: Tensor) -> Tensor:
    """The sum (..., 1) over the stored halves (..., n) and their conjugates."""
    return 2 * values.real.sum(-1, keepdim=True)


def _dense(steps: Recurrence) -> Tensor:
    """Ad as a matrix (H, N, N) that acts on the real and imaginary parts of a state."""
    channels, half = steps.plus.shape
    unit = torch.eye(2 * half, dtype=steps.plus.real.dtype, device=steps.plus.device)
    states = torch.view_as_complex(unit.view(2 * half, 1, half, 2)).expand(-1, channels, -1)
    return torch.view_as_real(steps.advance(states)).flatten(-2).permute(1, 2, 0)


def _row(c: Tensor) -> Tensor:
    """(H, 1, N): C as a row for the real and imaginary parts of a state."""
    return torch.view_as_real(c.conj().resolve_conj()).flatten(-2).unsqueeze(1)


def _from_row(row: Tensor) -> Tensor:
    return _complex(torch.unflatten(row.squeeze(1), -1, (-1, 2))).conj().resolve_conj()


def _complex(parts: Tensor) -> Tensor:
    return torch.view_as_complex(at_least_float32(parts).contiguous())
