"""Draws for which the host comes back after each token: forced tokens, and more than a chain holds of
log-probabilities or stop tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch

from olivine.backends.base import Batch, Draw, Drawn, TokenLogprobs
from olivine.backends.cuda.chain import Chains, is_adjusted
from olivine.backends.cuda.forward import Forwards
from olivine.backends.cuda.kernels.adjust import Adjustments, adjust
from olivine.errors import RequestError


def draw_on_host(
    forwards: Forwards,
    chains: Chains,
    batch: Batch,
    draws: Sequence[Draw],
    n: int,
    refused: Sequence[str | None],
) -> list[Drawn]:
    """As `DrawingProgram.generate`, a step at a time."""
    found = [Drawn(error=refusal) for refusal in refused]
    open_rows = [i for i, refusal in enumerate(refused) if refusal is None]
    here, states = batch, list(draws)
    at = {i: i for i in range(len(draws))}  # the output row of each draw
    for step in range(n):
        logits = forwards.logits(here)
        for i in list(open_rows):
            drawn = _draw_one(chains, logits[at[i]], states[i], here, at[i])
            found[i].error = drawn.error
            found[i].stopped = drawn.stopped
            found[i].tokens += drawn.tokens
            found[i].logprobs += drawn.logprobs
            if drawn.error is not None or drawn.stopped:
                open_rows.remove(i)
                continue
            states[i] = replace(
                states[i],
                output=[*states[i].output, *drawn.tokens],
                mask=None,
                forced=None,
                at_least=states[i].at_least - 1,
            )
        if not open_rows or step == n - 1:
            break
        rows = [int(here.outputs[at[i]]) for i in open_rows]
        here = Batch(
            tokens=np.array([found[i].tokens[-1] for i in open_rows], np.int32),
            sequences=here.sequences[rows],
            positions=here.positions[rows] + np.int32(1),
            outputs=np.arange(len(open_rows), dtype=np.int32),
            tables=here.tables,
            generated=np.ones(len(open_rows), bool),
        )
        at = {i: row for row, i in enumerate(open_rows)}
    return found


def _draw_one(chains: Chains, logits: torch.Tensor, draw: Draw, batch: Batch, output: int) -> Drawn:
    try:
        x = _adjusted(logits, draw) if is_adjusted(draw) else logits
    except RequestError as error:
        return Drawn(error=str(error))
    position = int(batch.positions[batch.outputs[output]])
    plain = Draw(replace(draw.sampling, repetition_penalty=1.0, presence_penalty=0.0, frequency_penalty=0.0,
                         logit_bias={}), stop=())  # fmt: skip
    one = replace(batch, outputs=batch.outputs[output : output + 1])
    chain = chains.get(one, [plain], 1)
    zero = np.zeros(1, np.int32)
    chain.begin(zero, zero, np.array([position], np.int32), batch.tables, [plain])
    chain.draw_from(x[None])
    drawn = chain.go(0)[0]
    if drawn.error is not None:
        return drawn
    token = drawn.tokens[0] if draw.forced is None else draw.forced
    if token in draw.stop and draw.forced is None:
        return Drawn(stopped=True)
    reports = [] if draw.logprobs is None else [_logprobs(x, token, draw.logprobs)]
    return Drawn([token], logprobs=reports)


def _adjusted(logits: torch.Tensor, draw: Draw) -> torch.Tensor:
    state = Adjustments(1, len(logits), logits.device)
    state.begin([draw])
    state.take_masks([draw.legal(len(logits))])
    stops = torch.tensor([[-1, *draw.stop]], dtype=torch.int32, device=logits.device)
    count = torch.tensor([stops.shape[1]], dtype=torch.int32, device=logits.device)
    return adjust(logits[None], state, stops, count)[0]


def _logprobs(x: torch.Tensor, token: int, count: int) -> TokenLogprobs:
    wide = x.double()
    total = torch.log(torch.exp(wide - wide.max()).sum()) + wide.max()
    order = torch.sort(x, descending=True, stable=True).indices[:count]
    return TokenLogprobs(float(wide[token] - total), order.tolist(), (wide[order] - total).tolist())
