"""The training recurrence: attention RNN and attention over all steps, with its own backward.

Only what depends on the step before is in the loop. Each step looks at a window of slots: those
outside have no weight, by the known rate. Forward keeps gates, cells, states, weights and the tanh
of the scores; backward forms the gradient of each weight as one product after the loop. The same
numbers as stepping `nn.LSTMCell` and `LocationAttention` (a test holds them together), in a
fraction of the operations autograd would record.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from audiovae.models.attention import Windows

NOT_A_SLOT = -1e9  # finite: steps after an utterance's end may see no slot of it at all


def attention_recurrence(
    gates: Tensor, keys: Tensor, memory: Tensor, bias: Tensor, mask: Tensor, windows: Windows,
    state: tuple[Tensor, Tensor], recurrent: Tensor, query: Tensor, location: Tensor, score: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Run all decoder steps.

    Args:
        gates: the part of the LSTM's gates that is known beforehand, with shape (L, B, 4H).
        keys: with shape (B, K, A).
        memory: with shape (B, K, D).
        bias: rate bias with shape (L, K).
        mask: with shape (B, K), True where a slot is real.
        windows: the W slots that each step looks at.
        state: first hidden and cell state, each with shape (B, H).
        recurrent: gate weights of [context; hidden] with shape (4H, D + H).
        query: with shape (A, H).
        location: folded location filter with shape (A, 2, kernel).
        score: with shape (A,).

    Returns:
        hidden (L, B, H), context (L, B, D), weights (L, B, K); no gradient flows through weights.
        What comes after an utterance's last step is finite, and not defined.
    """
    masked = torch.zeros_like(mask, dtype=torch.float32).masked_fill(~mask, NOT_A_SLOT)
    # float32 throughout, whatever the precision around it: errors would add up over the steps
    tensors = (gates, keys, memory, bias, masked, *state, recurrent, query, location.flatten(1))
    with torch.autocast(gates.device.type, enabled=False):
        return _Recurrence.apply(windows, *(t.float() for t in (*tensors, score)))


def _sum_windows(gradient: Tensor, kernel: int) -> Tensor:
    """(B, W, 2 * kernel) -> (B, 2, W + kernel - 1): the transpose of unfolding (B, 2, ...).

    Row w is laid down w places on, and all rows are added up.
    """
    batch, slots, _ = gradient.shape
    size = slots + kernel - 1
    rows = gradient.new_zeros(batch, 2, slots, size)
    plane = slots * size
    shifted = rows.as_strided((batch, 2, slots, kernel), (2 * plane, plane, size + 1, 1))
    shifted.copy_(gradient.view(batch, slots, 2, kernel).transpose(1, 2))
    return rows.sum(2)


class _Recurrence(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, windows: Windows, gates: Tensor, keys: Tensor, memory: Tensor, bias: Tensor,
        masked: Tensor, hidden0: Tensor, cell0: Tensor, recurrent: Tensor, query: Tensor,
        location: Tensor, score: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
        steps, batch, _ = gates.shape
        slots, dim = memory.shape[1:]
        width, attention = hidden0.shape[1], keys.shape[2]
        kernel, size = location.shape[1] // 2, windows.size
        pad = kernel // 2
        acts = torch.empty_like(gates)
        cells = gates.new_empty(steps + 1, batch, width)
        # [context; hidden] of step i - 1 stands at i: the recurrent input as one matrix
        inputs = gates.new_empty(steps + 1, batch, dim + width)
        weights = gates.new_zeros(steps + 1, batch, slots)
        tanhs = gates.new_empty(steps, batch, size, attention)
        seen = gates.new_empty(steps, batch, size, 2 * kernel)
        history = gates.new_zeros(batch, 2, slots + 2 * pad)
        index = windows.index(gates.device)
        offsets = (bias.gather(1, index).unsqueeze(1) + masked[:, index].transpose(0, 1)).flatten(1)
        cells[0], inputs[0, :, :dim], inputs[0, :, dim:] = cell0, 0.0, hidden0
        recurrent_t, query_t, location_t = recurrent.t(), query.t(), location.t()
        previous = history[:, 0, :0]
        for i, first in enumerate(windows.first):
            here = slice(first, first + size)
            act = torch.addmm(gates[i], inputs[i], recurrent_t, out=acts[i])
            act[:, : 2 * width].sigmoid_()
            act[:, 2 * width : 3 * width].tanh_()
            act[:, 3 * width :].sigmoid_()
            in_gate, forget, new, out_gate = act.chunk(4, 1)
            cell = torch.mul(forget, cells[i], out=cells[i + 1]).addcmul_(in_gate, new)
            hidden = torch.mul(out_gate, cell.tanh(), out=inputs[i + 1, :, dim:])
            around = history[:, :, first : first + size + 2 * pad].unfold(2, kernel, 1)
            seen[i].view(batch, size, 2, kernel).copy_(around.transpose(1, 2))
            tanh = torch.matmul(seen[i], location_t, out=tanhs[i])
            tanh += keys[:, here]
            tanh += (hidden @ query_t).unsqueeze(1)
            tanh.tanh_()
            scores = torch.addmv(offsets[i], tanh.view(-1, attention), score)
            weight = torch.softmax(scores.view(batch, size), 1)
            weights[i + 1, :, here] = weight
            inputs[i + 1, :, :dim] = torch.bmm(weight.unsqueeze(1), memory[:, here]).squeeze(1)
            previous.zero_()
            previous = history[:, 0, first + pad : first + size + pad]
            previous.copy_(weight)
            history[:, 1, first + pad : first + size + pad] += weight
        ctx.windows = windows
        ctx.save_for_backward(acts, cells, inputs, weights, tanhs, seen, memory, recurrent, query,
                              location, score)  # fmt: skip
        aligned = weights[1:]
        ctx.mark_non_differentiable(aligned)
        return inputs[1:, :, dim:].contiguous(), inputs[1:, :, :dim].contiguous(), aligned

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_hidden: Tensor, grad_context: Tensor, _: Tensor) -> Any:
        (acts, cells, inputs, weights, tanhs, seen, memory, recurrent, query, location,
         score) = ctx.saved_tensors  # fmt: skip
        windows = ctx.windows
        steps, batch, width = grad_hidden.shape
        slots, dim = memory.shape[1:]
        size, attention = tanhs.shape[2:]
        kernel = location.shape[1] // 2
        pad = kernel // 2
        # the score vector scales every gradient of the tanh: here once, not at each step
        scored_location, scored_query = score.unsqueeze(1) * location, score.unsqueeze(1) * query
        one = score.new_ones(1)
        by_hidden, by_gates = _cell_derivatives(acts, cells)
        d_gates = torch.empty_like(acts)
        d_contexts = grad_context.clone()
        d_scores = acts.new_empty(steps, batch, size)
        d_tanhs = torch.empty_like(tanhs)
        d_queries = acts.new_empty(steps, batch, attention)
        d_keys = acts.new_zeros(batch, slots, attention)
        d_input = acts.new_zeros(batch, dim + width)
        d_cell = acts.new_zeros(batch, width)
        # through the previous weights, and through their sum
        d_history = acts.new_zeros(batch, 2, slots + 2 * pad)
        for i in reversed(range(steps)):
            first = windows.first[i]
            here, there = slice(first, first + size), slice(first + pad, first + size + pad)
            weight = weights[i + 1, :, here]
            d_context = d_contexts[i].add_(d_input[:, :dim])
            d_weight = torch.bmm(memory[:, here], d_context.unsqueeze(2)).squeeze(2)
            d_weight += d_history[:, :, there].sum(1)
            d_score = d_weight.sub_((weight * d_weight).sum(1, keepdim=True))
            d_score = torch.mul(weight, d_score, out=d_scores[i])
            d_tanh = torch.addcmul(one, tanhs[i], tanhs[i], value=-1, out=d_tanhs[i])
            d_tanh *= d_score.unsqueeze(2)
            d_keys[:, here] += d_tanh
            d_query = torch.sum(d_tanh, 1, out=d_queries[i])
            d_around = _sum_windows(d_tanh @ scored_location, kernel)
            # the weights of step i - 1 were seen directly and in every later sum
            d_history[:, 0].zero_()
            d_history[:, :, first : first + size + 2 * pad] += d_around
            d_hidden = torch.addmm(grad_hidden[i], d_query, scored_query)
            d_hidden += d_input[:, dim:]
            d_cell.addcmul_(d_hidden, by_hidden[i])
            d_gate = d_gates[i].view(batch, 4, width)
            torch.mul(by_gates[i, :, :3], d_cell.unsqueeze(1), out=d_gate[:, :3])
            torch.mul(by_gates[i, :, 3], d_hidden, out=d_gate[:, 3])
            d_cell *= acts[i, :, width : 2 * width]
            d_input = d_gates[i] @ recurrent
        d_bias = acts.new_zeros(steps, slots)
        d_bias.scatter_(1, windows.index(acts.device), d_scores.sum(1))
        d_memory = torch.einsum("lbk,lbd->bkd", weights[1:], d_contexts)
        d_recurrent = d_gates.flatten(0, 1).t() @ inputs[:-1].flatten(0, 1)
        d_query_weight = d_queries.flatten(0, 1).t() @ inputs[1:, :, dim:].flatten(0, 1)
        d_location = d_tanhs.flatten(0, 2).t() @ seen.flatten(0, 2)
        d_score_weight = tanhs.flatten(0, 2).t() @ d_scores.flatten()
        scale = score.unsqueeze(1)
        return (None, d_gates, d_keys * score, d_memory, d_bias, None, d_input[:, dim:], d_cell,
                d_recurrent, scale * d_query_weight, scale * d_location,
                d_score_weight)  # fmt: skip


def _cell_derivatives(acts: Tensor, cells: Tensor) -> tuple[Tensor, Tensor]:
    """Of all steps: d cell / d hidden (L, B, H), and d gates (L, B, 4, H).

    The first three gates go with the gradient of the cell, the last with that of the hidden state.
    """
    in_gate, forget, new, out_gate = acts.chunk(4, 2)
    tanh_cell = cells[1:].tanh()
    by_hidden = out_gate * (1 - tanh_cell.square())
    by_gates = torch.stack(
        [
            new * in_gate * (1 - in_gate), cells[:-1] * forget * (1 - forget),
            in_gate * (1 - new.square()), tanh_cell * out_gate * (1 - out_gate),
        ],
        dim=2,
    )  # fmt: skip
    return by_hidden, by_gates
