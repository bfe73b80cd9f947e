"""Whether the CUDA backend is right on a GPU: the first half of benches/gpu.py."""

from __future__ import annotations

import tempfile
import traceback
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch

from olivine import models
from olivine.backends import Batch, Draw, Sampling
from olivine.backends.cuda import PAGE_SIZE, CudaProgram
from olivine.engine import sampling as definition
from synthetic import SHAPES
from synthetic.in_memory import model_in_memory


def say(*words: object) -> None:
    print(*words, flush=True)


def error(ours: np.ndarray, theirs: np.ndarray) -> float:
    """As tests/backends/test_cpu.py: the root mean square as a share of the spread, of nine rows in ten."""
    rows = np.sqrt(np.mean(np.square(ours - theirs), axis=1)) / theirs.std()
    return float(np.quantile(rows, 0.9))


def share_of(every: list[Any], share: str) -> list[Any]:
    first, of = map(int, share.split("/"))
    return every[first::of]


def small_models(which: str, share: str) -> Iterator[tuple[str, models.Model]]:
    from oracles import published, running

    types = ("BF16", "F16", "Q8_0", "Q4_0", "Q4_1", "Q4_K", "Q5_K", "Q6_K", "Q5_0", "Q5_1")
    types += ("Q2_K", "Q3_K", "IQ4_NL", "IQ4_XS", "MXFP4")
    shapes = ("tiny-qwen3", "tiny-gemma3", "tiny-llama")
    cases: list[Any] = [*published.CASES, *((shape, kind) for shape in shapes for kind in types)]
    cases += [("tiny-qwen3moe", kind) for kind in ("Q8_0", "Q4_K", "Q6_K", "Q5_0")]
    named = [(case if isinstance(case, tuple) else (case.name, case)) for case in cases]
    chosen = [(name, what) for name, what in named if which in f"{name} {what}"]
    for name, what in share_of(chosen, share):
        if isinstance(what, str):
            yield f"{name} {what}", model_in_memory(SHAPES[name], what, pure=what != "Q4_K")
            continue
        with tempfile.TemporaryDirectory() as folder:
            published.save(what.make(), Path(folder))
            yield name, running.build(Path(folder))


def right(which: str, share: str) -> bool:
    """Errors are those of rows with the reference's experts; how many would take others stands beside them.

    Two logits of a router, each within the bound, change their order where they are two bounds apart or less.
    """
    from oracles import published, routing, running

    tokens = [int(t) for t in np.random.default_rng(7).integers(0, 97, 150)]
    say(
        f"{'model':<28}{'prompt':>9}{'generated':>11}{'others':>8}{'gap':>7}{'chunks':>9}{'mix':>7}{'chain':>7}"
    )
    fine = True
    for name, model in small_models(which, share):
        try:
            counts = [40] * len(model.plan.groups)
            reference = routing.Recording(model.plan, model.weights, page_counts=counts, page_size=PAGE_SIZE)
            theirs = running.chunked(reference, tokens, [150])
            ours = CudaProgram(model.plan, model.weights, page_counts=counts)
            whole = running.chunked(ours, tokens, [150])
            single = running.chunked(ours, tokens[:70], [1], generated=True)
            chunks = all(
                np.array_equal(running.chunked(ours, tokens, sizes, seed=3), whole)
                for sizes in ([64, 3, 17], [149, 1])
            )
            mixed = same_in_a_mix(ours, tokens, whole, single)
            mixed = mixed and np.array_equal(running.chunked(ours, tokens[:70], [3], generated=True), single)
            mixed = mixed and same_in_micro_batches(ours, tokens, whole)
            chained = same_in_a_chain(ours, tokens) and same_under_a_mask(ours, tokens)
            chained = chained and same_with_drafts(ours, tokens)
            with routing.same_experts(ours, reference) as gaps:
                whole = running.chunked(ours, tokens, [150])
                single = running.chunked(ours, tokens[:70], [1], generated=True)
            errors = error(whole, theirs), error(single, theirs[:70])
            gap = float(np.quantile(gaps, 0.9)) if gaps else 0.0
            room = 0.04 * published.ROOM.get(name, 1)
            good = max(errors) < room and gap < 2 * room and chunks and mixed and chained
            words = f"{errors[0]:>9.4f}{errors[1]:>11.4f}{len(gaps):>8}{gap:>7.3f}"
            words += f"{chunks!s:>9}{mixed!s:>7}{chained!s:>7}"
            say(f"{name:<28}{words}{'' if good else '   WRONG'}")
        except Exception:
            good = False
            say(name, "FAILED", traceback.format_exc(limit=-6)[-2500:])
        fine = fine and good
    return fine


def same_in_a_mix(program: CudaProgram, tokens: list[int], whole: np.ndarray, single: np.ndarray) -> bool:
    """Generated rows of many sequences at once, beside prompt rows, have the bits that they have alone."""
    from oracles import running

    session = running.Session(program, 20, 64, seed=5)
    same = True
    for at in range(8):
        parts: list[tuple[int, list[int], bool]] = [(i, [tokens[at]], True) for i in range(19)]
        if at < 3:
            parts.append((19, tokens[at * 20 : at * 20 + 20], False))
        rows = session.step_mixed(parts)
        same = same and all(np.array_equal(rows[i][0], single[at]) for i in range(19))
        if at < 3:
            same = same and np.array_equal(rows[19], whole[at * 20 : at * 20 + 20])
    return same


def same_in_micro_batches(program: CudaProgram, tokens: list[int], whole: np.ndarray) -> bool:
    """Graphs share their memory, and the results of one are copied before another runs."""
    from oracles import running

    session = running.Session(program, 2, 64, seed=9)
    kinds = ((0, 0, 30, False), (1, 0, 40, False), (1, 40, 45, True), (1, 45, 50, False))
    batch = session.batch([(which, tokens[start:end], kind) for which, start, end, kind in kinds])
    wanted = replace(batch, outputs=np.array([29], np.int32))
    return all(np.array_equal(program.step(wanted).logits, whole[29:30]) for _ in range(4))


def same_in_a_chain(program: CudaProgram, tokens: list[int]) -> bool:
    """A chain of draws gives what single steps and the definition of sampling give."""
    from oracles import running

    hows = [
        Sampling(),
        Sampling(temperature=0.8, seed=3),
        Sampling(temperature=1.1, top_k=7, top_p=0.9, seed=1 << 40),
        Sampling(temperature=0.7, top_p=0.8, min_p=0.02, seed=9),
        Sampling(temperature=0.9, top_k=20, repetition_penalty=1.3, presence_penalty=0.2, seed=4),
    ]
    chains = running.Session(program, len(hows), 64, seed=1)
    parts: list[tuple[int, list[int], bool]] = [(i, tokens[: 10 + i], False) for i in range(len(hows))]
    batch = chains.batch(parts)
    ends = np.cumsum([len(part) for _, part, _ in parts]).astype(np.int32) - 1
    batch = Batch(batch.tokens, batch.sequences, batch.positions, ends, batch.tables, batch.generated)
    draws = [Draw(how, prompt=tokens[: 10 + i]) for i, how in enumerate(hows)]
    plain = draws[:4]
    drawn = program.generate(
        Batch(batch.tokens, batch.sequences, batch.positions, ends[:4], batch.tables, batch.generated),
        plain,
        12,
    )
    other = program.generate(
        Batch(batch.tokens, batch.sequences, batch.positions, ends[4:], batch.tables, batch.generated),
        draws[4:],
        12,
    )
    found = [d.tokens for d in (*drawn, *other)]
    for i, how in enumerate(hows):
        session = running.Session(program, 1, 64, seed=2)
        logits = session.step([(0, tokens[: 10 + i])])[0][-1]
        output: list[int] = []
        for step in range(12):
            output.append(definition.sample(logits, how, 10 + i + step, tokens[: 10 + i], output))
            if step < 11:
                logits = session.step([(0, [output[-1]])], generated=True)[0][0]
        if output != found[i]:
            say(f"  chain {i}: {output} but {found[i]}")
            return False
    return True


def same_under_a_mask(program: CudaProgram, tokens: list[int]) -> bool:
    """A chain whose first draw has a mask, beside one without: the step and the draw are two graphs."""
    from oracles import running

    words = np.zeros(-(-program.plan.logits.width // 32), np.int32)
    words[1] = 0x0000FF00  # tokens 40 to 47
    hows = [Sampling(temperature=0.9, top_k=9, seed=2), Sampling()]
    draws = [Draw(hows[0], mask=lambda: words), Draw(hows[1])]
    together = running.Session(program, 2, 64, seed=4)
    together.step([(i, tokens[:6]) for i in range(2)])
    batch = together.batch([(i, [tokens[6]], True) for i in range(2)])
    for _ in range(2):  # the second time the graphs are there
        found = [drawn.tokens for drawn in program.generate(batch, draws, 4)]
    for i, how in enumerate(hows):
        session = running.Session(program, 1, 64, seed=4)
        session.step([(0, tokens[:6])])
        logits = session.step([(0, [tokens[6]])], generated=True)[0][0]
        output: list[int] = []
        for step in range(4):
            mask = words if i == 0 and step == 0 else None
            output.append(definition.sample(logits, how, 7 + step, tokens[:7], output, mask))
            if step < 3:
                logits = session.step([(0, [output[-1]])], generated=True)[0][0]
        if output != found[i]:
            say(f"  masked chain {i}: {output} but {found[i]}")
            return False
    return 40 <= found[0][0] < 48


def same_with_drafts(program: CudaProgram, tokens: list[int]) -> bool:
    """Draft tokens of a sequence that are verified at once, in any order, give what they give one by one."""
    from oracles import running

    for i, count in enumerate((2, 2, 5, 5, 7, 7)):
        part = tokens[10 * i + 5 :][: count + 1]  # what no page has at its beginning yet
        alone = running.Session(program, 1, 64, seed=6)
        expected = np.concatenate([alone.step([(0, [token])], generated=True)[0] for token in part])
        together = running.Session(program, 1, 64, seed=8 + i)
        batch = together.batch([(0, part[:-1], True)])
        order = np.arange(count)[:: 1 if i % 2 else -1]
        reordered = Batch(
            batch.tokens[order], batch.sequences, batch.positions[order], batch.outputs, batch.tables,
            batch.generated,
        )  # fmt: skip
        drawn = [d.tokens for d in program.generate(reordered, [Draw(Sampling())] * count)]
        after = together.step([(0, part[-1:])], generated=True)[0]  # sees what every layer stored
        right = drawn == expected[:-1].argmax(1)[order][:, None].tolist()
        if not right or not np.array_equal(after, expected[-1:]):
            say(f"  {count} drafts, order {order}: {drawn} but {expected[:-1].argmax(1)[order]}")
            return False
    return True


def right_sampling() -> bool:
    """Kernels of sampling against the definition on equal logits, with ties, at real vocabularies: each way
    to draw alone, and all in one batch, with log-probabilities and without."""
    from olivine.backends.cuda.kernels import sampling as kernels
    from olivine.backends.cuda.kernels.advance import RowState
    from olivine.backends.cuda.kernels.reports import TOPS, Reports
    from oracles.drawing import choices, is_defined

    rng = np.random.default_rng(0)
    bad = 0
    total = 0
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")  # in Triton's interpreter
    for size in (50, 1000, 151936, 262144) if device.type == "cuda" else (50, 700):
        for spread in (1.0, 6.0):
            logits = (rng.standard_normal((12, size)) * spread).astype(np.float32)
            logits[3] = np.round(logits[3])  # many ties
            logits[4, : size // 2] = -np.inf
            hows = [
                Sampling(),
                Sampling(temperature=1.0, seed=5),
                Sampling(temperature=0.7, top_k=64, top_p=0.95, seed=6),
                Sampling(temperature=1.3, top_k=40, top_p=0.5, seed=7),
                Sampling(temperature=1.0, top_k=900, seed=8),
                Sampling(temperature=1.0, top_p=0.9, seed=9),
                Sampling(temperature=1.0, min_p=0.05, seed=(1 << 63) + 7),
                Sampling(temperature=0.3, top_k=5, top_p=0.9, min_p=0.1, seed=10),
                Sampling(temperature=1.0, top_k=1, seed=11),
                Sampling(temperature=100.0, top_p=0.3, seed=12),
                Sampling(temperature=0.01, seed=13),
                Sampling(temperature=1.0, top_k=300, top_p=0.99, seed=14),
            ]
            batches = [range(12), *([row] for row in range(12))]
            for chosen, reported in product(batches, (False, True)):
                some = [hows[row] for row in chosen]
                given = logits[list(chosen)]
                how, x = choices(some, size, device), torch.from_numpy(given).to(device)
                space = kernels.Workspace.empty(len(some), size, device)
                shared = Reports.empty(len(some), size, device) if reported else None
                sampled = any(s.temperature > 0 for s in some)
                by_histogram = any(kernels.needs_histogram(s, size) for s in some)
                for position in range(6 if len(some) > 1 else 2):
                    rows = RowState.empty(len(some), 1, device)
                    rows.positions.fill_(position)
                    reports = None if shared is None else shared.with_room(1)
                    kernels.choose(x, how, rows, space, sampled, by_histogram, reports)
                    found = rows.drawn[:, 0].tolist()
                    likely = reports.read([1] * len(some), [min(TOPS, size)] * len(some)) if reports else None
                    for row, s in enumerate(some):
                        total += 1
                        expected = definition.sample(given[row], s, position + 1)
                        wrong = ""
                        if expected != found[row]:
                            wrong = f"{found[row]} should be {expected}"
                        elif likely is not None and not is_defined(likely[row][0], given[row], expected):
                            wrong = f"log-probabilities of {expected} are not the definition's"
                        bad += bool(wrong)
                        if wrong and bad < 12:
                            say(f"  V={size} spread={spread} {s}: {wrong}")
    say(f"sampling: {total - bad} of {total} draws equal the definition's")
    return bad == 0


def right_products(share: str) -> bool:
    """A row of a product has the same bits alone, among a few and among many; at real widths."""
    from olivine.backends.cuda.kernels.gemv import gemv
    from olivine.backends.cuda.tiles import GemvTiles, gemv_tiles
    from olivine.backends.cuda.weights import planes_of, repack
    from oracles.matrices import tensor_of

    def in_steps(of: int, cut: GemvTiles, limit: int, given: dict[str, Any]) -> torch.Tensor:
        """The product of so many rows at a time; with an `up` only a gate."""
        halved = "activation" in given and "up" not in given
        out = torch.zeros((cut.splits, rows, n // 2 if halved else n), device=device)
        for at in (slice(i, i + of) for i in range(0, rows, of)):
            some = {key: value if key == "activation" else value[at] for key, value in given.items()}
            gemv(x[at], weight, out[:, at], replace(cut, eight_row_limit=limit), **some)
        return out

    bad = total = 0
    device = torch.device("cuda")
    shapes = ((512, 256), (97, 320), (768, 1024), (512, 1152), (512, 2048), (1040, 2560), (256, 5376))
    every = [(kind, n, k) for kind in ("BF16", "F16", "F32") for n, k in shapes]
    blocks = ("Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "IQ4_NL", "MXFP4")
    every += [(kind, n, k) for kind in blocks for n, k in ((97, 320), (1040, 1152), (17408, 1024))]
    blocks = ("Q4_K", "Q5_K", "Q6_K", "Q2_K", "Q3_K", "IQ4_XS")
    every += [(kind, n, k) for kind in blocks for n, k in ((97, 768), (1040, 2560), (17408, 1024))]
    every += [("Q4_K", 20480, 2560), ("Q8_0", 20480, 2560), ("Q6_K", 34816, 1024)]  # other tiles of one row
    for kind, n, k in share_of(every, share):
        weight = repack(planes_of(tensor_of(kind, n, k), k, device))
        for rows, split_k in ((9, True), (17, False), (33, True), (64, False), (65, True), (200, False)):
            cut = gemv_tiles(weight, split_k)
            x, inv_rms = torch.randn(rows, k, device=device).bfloat16(), torch.rand(rows, device=device)
            up = torch.randn(rows, 3 * n, device=device)[:, n : 2 * n]
            torch.cuda.synchronize()  # `up` is loaded before the wait
            ways: list[dict[str, Any]] = [{}] if split_k else [{"activation": 1, "up": up}]
            ways += [] if split_k or n % 16 else [{"activation": 0}]
            for given in ({"inv_rms": inv_rms, **way} for way in ways):
                among = in_steps(rows, cut, 8, given)
                others = [in_steps(of, cut, limit, given) for of, limit in ((5, 8), (1, 8), (rows, rows))]
                total += 1
                if not all(torch.equal(other, among) for other in others) or not among.any():
                    bad += 1
                    off = [float((other - among).abs().max()) for other in others]
                    say(f"  {kind} {n}×{k}, {rows} rows, {', '.join(given)}: off by {off}")
    say(f"products: {total - bad} of {total} have the same bits in any batch")
    return bad == 0


def right_pairs(share: str) -> bool:
    """Two products in one launch have the bits of two."""
    from olivine.backends.cuda.kernels.gemv import gemv
    from olivine.backends.cuda.kernels.gemv_pair import RowProduct, gemv_pair
    from olivine.backends.cuda.tiles import gemv_tiles
    from olivine.backends.cuda.weights import planes_of, repack
    from oracles.matrices import tensor_of

    device, bad = torch.device("cuda"), 0
    every = [("Q4_K", "Q6_K", 2560), ("Q4_K", "Q6_K", 1024), ("Q5_0", "Q8_0", 1152), ("Q6_K", "Q4_K", 1536)]
    shared = share_of(every, share)
    for *kinds, k in shared:
        x, inv_rms = torch.randn(1, k, device=device).bfloat16(), torch.rand(1, device=device)
        sizes = zip(kinds, (3072, 1000), strict=True)
        weights = [repack(planes_of(tensor_of(kind, n, k), k, device)) for kind, n in sizes]
        cuts = [gemv_tiles(weight, False) for weight in weights]
        outs, expected = ([torch.zeros(1, weight.n, device=device) for weight in weights] for _ in range(2))
        for weight, cut, out in zip(weights, cuts, expected, strict=True):
            gemv(x, weight, out, cut, inv_rms=inv_rms)
        first, second = (
            RowProduct(x, weight, out, None, cut)
            for weight, out, cut in zip(weights, outs, cuts, strict=True)
        )
        gemv_pair(first, second, inv_rms=inv_rms)
        if not all(torch.equal(a, b) and a.any() for a, b in zip(outs, expected, strict=True)):
            bad += 1
            say(f"  {kinds} × {k}: two products in one launch have other bits")
    say(f"pairs of products: {len(shared) - bad} of {len(shared)} have the bits of two")
    return bad == 0


def right_attention(part: str) -> bool:
    """A row of attention is right, and generated ones have the same bits alone and among others; at real
    widths and far positions."""
    from oracles.attending import in_every_way, of_a_prompt, off_by

    device = torch.device("cuda")
    places = [0, 1, 31, 32, 63, 64, 65, 127, 128, 255, 256, 511, 512, 1023, 2047, 2048, 2049, 2303, 2304]
    places += np.random.default_rng(0).integers(0, 3000, 13).tolist()
    shapes = [(8, 2, 128, None), (1, 4, 256, 512), (4, 2, 256, None), (1, 8, 256, 512), (1, 8, 512, None)]
    shapes += [(4, 8, 128, None), (2, 3, 96, None), (8, 1, 64, 4096), (4, 16, 128, None), (8, 12, 128, None)]
    shapes = share_of(shapes, part)
    bad = 0
    for groups, share, d, window in shapes:
        (alone, *others), expected = in_every_way(groups, share, d, window, places, device)
        pairs = [pair for other in others for pair in zip(alone, other, strict=True)]
        off = [int((a != b).any(-1).sum()) for a, b in pairs]
        errors = [off_by(alone[0], expected), off_by(*of_a_prompt(groups, share, d, window, 700, device))]
        if any(off) or not max(errors) < 0.02:
            bad += 1
            say(f"  {groups}×{share} heads of {d}, window {window}: off by {errors}, rows that differ: {off}")
    say(f"attention: {len(shapes) - bad} of {len(shapes)} shapes are right, with the same bits in any batch")
    return bad == 0
