"""A small character transformer and how it is trained. Attention is an argument, so it can change.

Weights are FP32; on a GPU the matrix products run in BF16 (autocast). The same seeds give the same
weights and the same windows of text, whatever the attention.
"""

from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F

TEXT = Path(__file__).parent / "data" / "alice.txt"


def load_text(path: Path = TEXT) -> tuple[torch.Tensor, str]:
    """The text as a tensor of character numbers, and the characters by number."""
    text = path.read_text(encoding="ascii")
    characters = "".join(sorted(set(text)))
    return torch.tensor([characters.index(c) for c in text]), characters


class Attention(nn.Module):
    """Each position looks back at the positions before it: `attend(q, k, v, causal=True)`."""

    def __init__(self, width, heads, attend):
        super().__init__()
        self.heads, self.attend = heads, attend
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)

    def forward(self, x):
        """x (B, N, width) → (B, N, width)."""
        b, n, width = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        with torch.autocast(x.device.type, enabled=False):  # attend works in the type of q
            o = self.attend(q, k, v, causal=True)
        return self.out(o.transpose(1, 2).reshape(b, n, width))


class Block(nn.Module):
    """Attention, then a small network at each position; each adds to what was there."""

    def __init__(self, width, heads, attend):
        super().__init__()
        self.attention = Attention(width, heads, attend)
        self.network = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])

    def forward(self, x):
        """x (B, N, width) → (B, N, width)."""
        x = x + self.attention(self.norms[0](x))
        return x + self.network(self.norms[1](x))


class Transformer(nn.Module):
    """Guesses the next character at every position: tokens (B, N) → scores (B, N, characters)."""

    def __init__(self, attend, *, characters, n, width, heads, layers, seed=0):
        super().__init__()
        torch.manual_seed(seed)
        self.token, self.place = nn.Embedding(characters, width), nn.Embedding(n, width)
        self.blocks = nn.Sequential(*(Block(width, heads, attend) for _ in range(layers)))
        self.scores = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, characters))

    def forward(self, tokens):
        """Scores of every character at every position, before the softmax."""
        place = self.place(torch.arange(tokens.shape[1], device=tokens.device))
        return self.scores(self.blocks(self.token(tokens) + place))


def windows(text, n, batch, seed=0):
    """Endless batches of `batch` random pieces of the text, n + 1 characters each."""
    draw = torch.Generator().manual_seed(seed)
    while True:
        starts = torch.randint(len(text) - n, (batch,), generator=draw)
        yield torch.stack([text[i : i + n + 1] for i in starts])


def loss_of(model, window, half=False):
    """Mean surprise at the next character, in nats: −log of the probability it was given."""
    window = window.to(next(model.parameters()).device)
    with torch.autocast(window.device.type, torch.bfloat16, enabled=half):
        scores = model(window[:, :-1])
    return F.cross_entropy(scores.float().flatten(0, 1), window[:, 1:].flatten())


def train(model, batches, steps, *, half=False, lr=1e-3):
    """Train for so many steps; the loss before each."""
    optimiser = torch.optim.AdamW(model.parameters(), lr=lr)
    losses = []
    for _, window in zip(range(steps), batches, strict=False):
        loss = loss_of(model, window, half)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    return losses


@torch.no_grad()
def write(model, start, length, n, half=False, seed=0):
    """Let the model continue `start` (a list of character numbers) by `length` characters.

    It always sees n characters, the last ones, so that every step has one shape.
    """
    device = next(model.parameters()).device
    tokens = torch.as_tensor(start, device=device)
    draw = torch.Generator(device).manual_seed(seed)
    for _ in range(length):
        with torch.autocast(device.type, torch.bfloat16, enabled=half):
            scores = model(tokens[None, -n:])[0, -1].float()
        choice = torch.multinomial(scores.softmax(-1), 1, generator=draw)
        tokens = torch.cat([tokens, choice])
    return tokens[len(start) :].tolist()
