"""The training recurrence: attention RNN and attention over all steps, with its own backward.

Only what depends on the step before is in the loop. Forward keeps gates, cells, states, contexts
and weights; backward recomputes the tanh of the scores and forms the gradient of each weight as
one product after the loop. The same numbers as stepping `nn.LSTMCell` and `LocationAttention`
(a test holds them together), in a fraction of the operations autograd would record.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable


def attention_recurrence(
    gates: Tensor, keys: Tensor, memory: Tensor, bias: Tensor, mask: Tensor,
    state: tuple[Tensor, Tensor], recurrent: Tensor, query: Tensor, location: Tensor, score: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Run all decoder steps.

    Args:
        gates: the part of the LSTM's gates that is known beforehand, with shape (L, B, 4H).
        keys: with shape (B, K, A).
        memory: with shape (B, K, D).
        bias: rate bias with shape (L, K).
        mask: with shape (B, K), True where a slot is real.
        state: first hidden and cell state, each with shape (B, H).
        recurrent: gate weights of [context; hidden] with shape (4H, D + H).
        query: with shape (A, H).
        location: folded location filter with shape (A, 2, kernel).
        score: with shape (A,).

    Returns:
        hidden (L, B, H), context (L, B, D), weights (L, B, K); no gradient flows through weights.
    """
    masked = torch.zeros_like(mask, dtype=torch.float32).masked_fill(~mask, -torch.inf)
    # float32 throughout, whatever the precision around it: errors would add up over the steps
    tensors = (gates, keys, memory, bias, masked, *state, recurrent, query, location.flatten(1))
    with torch.autocast(gates.device.type, enabled=False):
        return _Recurrence.apply(*(t.float() for t in (*tensors, score)))


def _windows(history: Tensor, kernel: int) -> Tensor:
    """(B, 2, K) -> (B, K, 2 * kernel): what the location filter sees at each slot."""
    padded = F.pad(history, (kernel // 2, kernel // 2))
    return padded.unfold(2, kernel, 1).permute(0, 2, 1, 3).flatten(2)


def _sum_windows(gradient: Tensor, kernel: int) -> Tensor:
    """The transpose of `_windows`: (B, K, 2 * kernel) -> (B, 2, K)."""
    batch, slots, _ = gradient.shape
    columns = gradient.view(batch, slots, 2 * kernel).transpose(1, 2)
    padded = slots + 2 * (kernel // 2)
    folded = F.fold(columns, (1, padded), (1, kernel))
    return folded.view(batch, 2, padded)[:, :, kernel // 2 : kernel // 2 + slots]


class _Recurrence(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, gates: Tensor, keys: Tensor, memory: Tensor, bias: Tensor, masked: Tensor,
        hidden0: Tensor, cell0: Tensor, recurrent: Tensor, query: Tensor, location: Tensor,
        score: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
        steps, batch, _ = gates.shape
        slots, dim = memory.shape[1:]
        width = hidden0.shape[1]
        kernel = location.shape[1] // 2
        acts = torch.empty_like(gates)
        cells = gates.new_empty(steps + 1, batch, width)
        # [context; hidden] of step i - 1 stands at i: the recurrent input as one matrix
        inputs = gates.new_empty(steps + 1, batch, dim + width)
        weights = gates.new_zeros(steps + 1, batch, slots)
        history = gates.new_zeros(batch, 2, slots)
        cells[0], inputs[0, :, :dim], inputs[0, :, dim:] = cell0, 0.0, hidden0
        recurrent_t, query_t, location_t = recurrent.t(), query.t(), location.t()
        for i in range(steps):
            act = torch.addmm(gates[i], inputs[i], recurrent_t, out=acts[i])
            act[:, : 2 * width].sigmoid_()
            act[:, 2 * width : 3 * width].tanh_()
            act[:, 3 * width :].sigmoid_()
            in_gate, forget, new, out_gate = act.chunk(4, 1)
            cell = torch.mul(forget, cells[i], out=cells[i + 1]).addcmul_(in_gate, new)
            hidden = out_gate * cell.tanh()
            energy = _windows(history, kernel) @ location_t
            energy += keys
            energy += (hidden @ query_t).unsqueeze(1)
            scores = energy.tanh_() @ score
            scores += bias[i] + masked
            weight = torch.softmax(scores, 1)
            weights[i + 1] = weight
            inputs[i + 1, :, dim:] = hidden
            inputs[i + 1, :, :dim] = torch.bmm(weight.unsqueeze(1), memory).squeeze(1)
            history[:, 0] = weight
            history[:, 1] += weight
        ctx.save_for_backward(acts, cells, inputs, weights, keys, memory, recurrent, query,
                              location, score)  # fmt: skip
        aligned = weights[1:]
        ctx.mark_non_differentiable(aligned)
        return inputs[1:, :, dim:].contiguous(), inputs[1:, :, :dim].contiguous(), aligned

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_hidden: Tensor, grad_context: Tensor, _: Tensor) -> Any:
        (acts, cells, inputs, weights, keys, memory, recurrent, query, location,
         score) = ctx.saved_tensors  # fmt: skip
        steps, batch, width = grad_hidden.shape
        slots, dim = memory.shape[1:]
        kernel = location.shape[1] // 2
        location_t, query_t = location.t(), query.t()
        d_gates = torch.empty_like(acts)
        d_contexts = grad_context.clone()
        d_queries = acts.new_empty(steps, batch, query.shape[0])
        d_bias = acts.new_empty(steps, slots)
        d_keys, d_location = torch.zeros_like(keys), torch.zeros_like(location)
        d_score = torch.zeros_like(score)
        d_input = acts.new_zeros(batch, dim + width)
        d_cell = acts.new_zeros(batch, width)
        d_previous = acts.new_zeros(batch, slots)  # through the previous weights
        d_cumulative = acts.new_zeros(batch, slots)  # through their sum
        before = weights.cumsum(0)  # before[i]: the cumulative weights that step i saw
        for i in reversed(range(steps)):
            weight = weights[i + 1]
            d_context = d_contexts[i].add_(d_input[:, :dim])
            d_weight = torch.bmm(memory, d_context.unsqueeze(2)).squeeze(2)
            d_weight += d_previous
            d_weight += d_cumulative
            d_scores = weight * (d_weight - (weight * d_weight).sum(1, keepdim=True))
            d_bias[i] = d_scores.sum(0)
            hidden = inputs[i + 1, :, dim:]
            window = _windows(torch.stack([weights[i], before[i]], 1), kernel)
            energy = window @ location_t
            energy += keys
            energy += (hidden @ query_t).unsqueeze(1)
            energy.tanh_()
            d_score += energy.flatten(0, 1).t() @ d_scores.flatten()
            d_energy = torch.addcmul(score, energy.square_(), score, value=-1)
            d_energy *= d_scores.unsqueeze(2)
            d_keys += d_energy
            d_query = torch.sum(d_energy, 1, out=d_queries[i])
            d_location.addmm_(d_energy.flatten(0, 1).t(), window.flatten(0, 1))
            d_history = _sum_windows(d_energy @ location, kernel)
            # the weights of step i - 1 were seen directly and in every later sum
            d_previous = d_history[:, 0]
            d_cumulative = d_cumulative + d_history[:, 1]
            d_hidden = grad_hidden[i] + d_input[:, dim:]
            d_hidden.addmm_(d_query, query)
            in_gate, forget, new, out_gate = acts[i].chunk(4, 1)
            d_in, d_forget, d_new, d_out = d_gates[i].chunk(4, 1)
            tanh_cell = cells[i + 1].tanh()
            d_cell = d_cell + d_hidden * out_gate * (1 - tanh_cell.square())
            torch.mul(d_hidden * tanh_cell, out_gate * (1 - out_gate), out=d_out)
            torch.mul(d_cell * new, in_gate * (1 - in_gate), out=d_in)
            torch.mul(d_cell * cells[i], forget * (1 - forget), out=d_forget)
            torch.mul(d_cell * in_gate, 1 - new.square(), out=d_new)
            d_cell = d_cell * forget
            d_input = d_gates[i] @ recurrent
        d_memory = torch.einsum("lbk,lbd->bkd", weights[1:], d_contexts)
        d_recurrent = d_gates.flatten(0, 1).t() @ inputs[:-1].flatten(0, 1)
        d_query_weight = d_queries.flatten(0, 1).t() @ inputs[1:, :, dim:].flatten(0, 1)
        return (d_gates, d_keys, d_memory, d_bias, None, d_input[:, dim:], d_cell, d_recurrent,
                d_query_weight, d_location, d_score)  # fmt: skip
