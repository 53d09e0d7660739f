"""Attention on a sentence: one layer that guesses the next letter, with weights learned from a book.

What a row may see was chosen: a query sees its own letter and the one before it, a key the *two
letters before* its own, a value its own letter. The numbers in data/letters.json were learned from
data/alice.txt, to guess each next letter from the output row alone. In every piece of the book the
letters were swapped at random, so that no word can be known by heart: what helps is to look back.

    python -m course.letters    learns them anew (about a minute; needs torch)
"""

import functools
import json
import re
from pathlib import Path

import numpy as np

DATA = Path(__file__).parent / "data"
ALPHABET = " abcdefghijklmnopqrstuvwxyz,.!?'"
D, LENGTH, PIECES, STEPS = 8, 128, 32, 4000  # width; letters a piece; pieces a step


def rows(text: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Q, K and V of a text, each of shape (letters, 8), FP64. Capitals count as small letters.

    Raises ValueError for a character that is not in `ALPHABET`.
    """
    if strange := sorted({c for c in text.lower() if c not in ALPHABET}):
        raise ValueError(f"The model knows {ALPHABET!r} only, not {''.join(strange)!r}.")
    weights = _weights()
    numbers = np.array([*map(ALPHABET.index, ". " + text.lower())])  # a sentence ended before
    return _rows(*(np.array(weights[name]) for name in ("query", "key", "value")), numbers)


def _rows(query, key, value, numbers):
    """Look up the codes of letters; `numbers` has two more, in front. NumPy's or torch's arrays."""
    own, before, two_before = numbers[..., 2:], numbers[..., 1:-1], numbers[..., :-2]
    return query[0][own] + query[1][before], key[0][before] + key[1][two_before], value[own]


@functools.cache
def _weights():
    return json.loads((DATA / "letters.json").read_text(encoding="utf-8"))


def learn(steps: int = STEPS, seed: int = 0) -> tuple[dict, list[float]]:
    """The weights as lists, learned in so many steps; and the loss before each, in nats a letter."""
    import torch
    from torch.nn import functional as F

    text = re.sub(rf"[^{ALPHABET[1:]}]+", " ", (DATA / "alice.txt").read_text("ascii").lower())
    book = torch.tensor([ALPHABET.index(c) for c in text])
    draw = torch.Generator().manual_seed(seed)
    size = len(ALPHABET)
    random = functools.partial(torch.randn, generator=draw)
    codes = [random(2, size, D), random(2, size, D), random(size, D)]  # query, key, value
    guess, often = 0.3 * random(D, size), torch.zeros(size)
    weights = [w.requires_grad_() for w in (*codes, guess, often)]
    optimiser = torch.optim.Adam(weights, lr=0.03)
    slower = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda i: min(1, 1.4 * (1 - i / steps)))
    losses = []
    for _ in range(steps):
        starts = torch.randint(len(book) - LENGTH - 2, (PIECES,), generator=draw)
        pieces = torch.stack([_swapped(book[i : i + LENGTH + 3], draw) for i in starts])
        q, k, v = _rows(*codes, pieces[:, :-1])
        o = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        loss = F.cross_entropy((o @ guess + often).flatten(0, 1), pieces[:, 3:].flatten())
        small = 4e-6 * sum(w.square().sum() for w in codes)  # keeps the scores moderate
        optimiser.zero_grad()
        (loss + small).backward()
        optimiser.step()
        slower.step()
        losses.append(loss.item())
    names = ("query", "key", "value")
    rounded = [w.detach().double().numpy().round(2).tolist() for w in codes]
    return dict(zip(names, rounded, strict=True)), losses


def _swapped(piece, draw):
    """The piece with its letters a to z swapped at random, the same way throughout."""
    import torch

    table = torch.arange(len(ALPHABET))
    table[1:27] = 1 + torch.randperm(26, generator=draw)
    return table[piece]


def main() -> None:
    """Learn the weights and write data/letters.json."""
    import torch

    from course import measure

    torch.set_num_threads(1)  # the matrices are so small that a second thread only waits
    weights, losses = learn()
    method = (
        f"{STEPS} steps of Adam, each on {PIECES} pieces of {LENGTH} letters of alice.txt, letters "
        f"swapped at random in every piece; loss {losses[0]:.2f} to {np.mean(losses[-100:]):.2f}"
    )
    parts = {"stamp": measure.stamp("cpu", method)} | weights
    lines = (f'"{name}": {json.dumps(part)}' for name, part in parts.items())
    path = DATA / "letters.json"
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
    print(f"{path.name}: {method}")


if __name__ == "__main__":
    main()
