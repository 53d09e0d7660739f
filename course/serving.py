"""What a language model costs to serve: bytes of weights and cache, time of a token, of a prompt.

A decode step reads every weight that its tokens use once, and every sequence's cache. So its time
is the larger of bytes over bandwidth and FLOPs over peak: `course.roofline` of `step`.
"""

from dataclasses import KW_ONLY, dataclass
from math import ceil

from course import cost, roofline
from course.hardware import Fixed, Gpu

FORMATS = Fixed(
    {  # bytes a weight, its share of the scales counted
        "bf16": 2,
        "fp8": 1,
        "int8": 1 + 2 / 128,  # a 16-bit scale for each group of 128
        "int4": 1 / 2 + 2 / 128,  # as above
        "nvfp4": 1 / 2 + 1 / 16,  # 8-bit scales for groups of 16
        "mxfp4": 1 / 2 + 1 / 32,  # 8-bit scales for groups of 32 (OCP Microscaling 1.0)
    }
)
CACHE_FORMATS = Fixed({"bf16": 2, "fp8": 1, "int4": 1 / 2 + 2 / 128})


@dataclass(frozen=True)
class Model:
    """A public model, as its configuration file and model card print it.

    A cache of keys and values has `layers` × `kv_heads` × `head_dim` numbers a token, twice; in
    `windowed` of the layers only the last `window` tokens are kept; `latent` is instead what latent
    attention keeps a layer, (shared numbers, rotary numbers). `active` parameters are used by one
    token; of `experts` in a layer each token uses `chosen`.
    """

    name: str
    _: KW_ONLY
    parameters: float
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    source: str
    active: float | None = None
    experts: int = 1
    chosen: int = 1
    window: int | None = None
    windowed: int = 0
    latent: tuple[int, int] | None = None

    def weights(self, batch: int = 1) -> float:
        """Parameters that a step reads for `batch` tokens whose experts are drawn evenly."""
        (batch,) = cost.whole(1, batch=batch)
        if self.experts == 1:
            return self.parameters
        expert = (self.parameters - self.active) / (self.experts - self.chosen)
        used = self.experts * (1 - (1 - self.chosen / self.experts) ** batch)
        return self.active + (used - self.chosen) * expert

    def cache_bytes(self, tokens: int, itemsize: float = 2) -> int:
        """Bytes of the cache of one sequence of so many tokens."""
        if self.latent:
            shared, rotary = self.latent
            return cost.latent_cache_bytes(
                layers=self.layers, latent_dim=shared, rope_dim=rotary, tokens=tokens, itemsize=itemsize
            )  # fmt: skip
        shape = dict(kv_heads=self.kv_heads, head_dim=self.head_dim, itemsize=itemsize)
        whole = cost.kv_cache_bytes(layers=self.layers - self.windowed, tokens=tokens, **shape)
        if not self.windowed:
            return whole
        return whole + cost.kv_cache_bytes(
            layers=self.windowed, tokens=tokens, window=self.window, **shape
        )


def _models(*models):
    return Fixed({model.name: model for model in models})


_CARD = "config.json and model card of {}"
MODELS = _models(
    Model("Llama 3.2 1B", parameters=1.24e9, layers=16, heads=32, kv_heads=8, head_dim=64,
          source=_CARD.format("meta-llama/Llama-3.2-1B")),
    Model("Llama 3.2 3B", parameters=3.21e9, layers=28, heads=24, kv_heads=8, head_dim=128,
          source=_CARD.format("meta-llama/Llama-3.2-3B")),
    Model("Qwen3 4B", parameters=4.02e9, layers=36, heads=32, kv_heads=8, head_dim=128,
          source=_CARD.format("Qwen/Qwen3-4B")),
    Model("Mistral 7B", parameters=7.25e9, layers=32, heads=32, kv_heads=8, head_dim=128,
          source=_CARD.format("mistralai/Mistral-7B-v0.3")),
    Model("Llama 3.1 8B", parameters=8.03e9, layers=32, heads=32, kv_heads=8, head_dim=128,
          source=_CARD.format("meta-llama/Llama-3.1-8B")),
    Model("Gemma 2 9B", parameters=9.24e9, layers=42, heads=16, kv_heads=8, head_dim=256,
          window=4096, windowed=21, source=_CARD.format("google/gemma-2-9b")),
    Model("Phi-4", parameters=14.7e9, layers=40, heads=40, kv_heads=10, head_dim=128,
          source=_CARD.format("microsoft/phi-4")),
    Model("gpt-oss-20b", parameters=20.9e9, active=3.6e9, experts=32, chosen=4, layers=24, heads=64,
          kv_heads=8, head_dim=64, window=128, windowed=12, source=_CARD.format("openai/gpt-oss-20b")),
    Model("Gemma 3 27B", parameters=27.4e9, layers=62, heads=32, kv_heads=16, head_dim=128,
          window=1024, windowed=52, source=_CARD.format("google/gemma-3-27b-it")),
    Model("Qwen3 30B-A3B", parameters=30.5e9, active=3.3e9, experts=128, chosen=8, layers=48,
          heads=32, kv_heads=4, head_dim=128, source=_CARD.format("Qwen/Qwen3-30B-A3B")),
    Model("Mixtral 8x7B", parameters=46.7e9, active=12.9e9, experts=8, chosen=2, layers=32, heads=32,
          kv_heads=8, head_dim=128, source=_CARD.format("mistralai/Mixtral-8x7B-v0.1")),
    Model("Llama 3.1 70B", parameters=70.6e9, layers=80, heads=64, kv_heads=8, head_dim=128,
          source=_CARD.format("meta-llama/Llama-3.1-70B")),
    Model("gpt-oss-120b", parameters=116.8e9, active=5.1e9, experts=128, chosen=4, layers=36,
          heads=64, kv_heads=8, head_dim=64, window=128, windowed=18,
          source=_CARD.format("openai/gpt-oss-120b")),
    Model("DeepSeek-V3", parameters=671e9, active=37e9, experts=256, chosen=8, layers=61, heads=128,
          kv_heads=128, head_dim=128, latent=(512, 64), source=_CARD.format("deepseek-ai/DeepSeek-V3")),
)  # fmt: skip


def weight_bytes(model: Model, form: str = "bf16") -> int:
    """Bytes of all weights in a format of FORMATS."""
    return ceil(model.parameters * FORMATS[form])


def step(
    model: Model, *, batch: int = 1, context: int = 0, form: str = "bf16", cache: str = "bf16",
    queries: int = 1,
) -> cost.Cost:  # fmt: skip
    """One decode step: `queries` tokens (1, or more where some are guessed) of each of `batch`
    sequences that hold `context` tokens. Weights are unpacked on the chip and multiplied as BF16.
    """
    batch, queries = cost.whole(1, batch=batch, queries=queries)
    tokens = batch * queries
    read = ceil(model.weights(tokens) * FORMATS[form])
    kept = model.cache_bytes(context, CACHE_FORMATS[cache])
    flops = 2 * tokens * (model.active or model.parameters)
    flops += tokens * _attention_flops(model, context, min(context, model.window or context))
    return cost.Cost(ceil(flops), read + batch * kept, 0)


def prefill(
    model: Model, tokens: int, *, form: str = "bf16", chunk: int | None = None
) -> cost.Cost:
    """A prompt of so many tokens, whole or in chunks: each chunk reads the weights once."""
    (tokens,) = cost.whole(1, tokens=tokens)
    (chunk,) = cost.whole(1, chunk=min(chunk or tokens, tokens))
    sizes = [chunk] * (tokens // chunk) + [tokens % chunk] * bool(tokens % chunk)
    read = sum(ceil(model.weights(size) * FORMATS[form]) for size in sizes)
    starts = range(0, tokens, chunk)
    read += sum(model.cache_bytes(start) for start in starts)  # what earlier chunks have left
    flops = 2 * tokens * (model.active or model.parameters)
    flops += _attention_flops(model, _pairs(tokens), _pairs(tokens, model.window))
    return cost.Cost(ceil(flops), read, model.cache_bytes(tokens))


def together(model: Model, *costs: cost.Cost, form: str = "bf16") -> cost.Cost:
    """Steps and chunks of prompts of a dense model done at once: its weights are read once for all."""
    if model.experts > 1:
        raise ValueError(
            f"{model.name} reads other experts for other tokens: this adds dense models."
        )
    again = (len(costs) - 1) * weight_bytes(model, form)
    every = sum(costs[1:], costs[0])
    return cost.Cost(every.flops, every.read - again, every.written)


def _pairs(tokens, window=None):
    """How many keys the tokens of a prompt see together, themselves included."""
    near = min(tokens, window or tokens)
    return near * (near + 1) // 2 + (tokens - near) * near


def _attention_flops(model, far, near):
    """Q Kᵀ and P V of all layers, for so many pairs in a whole and in a windowed layer."""
    pairs = (model.layers - model.windowed) * far + model.windowed * near
    # latent attention compares shared and rotary numbers, and adds up shared ones
    width = 2 * model.latent[0] + model.latent[1] if model.latent else 2 * model.head_dim
    return 2 * model.heads * width * pairs


def tokens_per_second(model: Model, gpu: Gpu, *, batch: int = 1, **how) -> float:
    """Tokens of all sequences together in a second, at the best, by the roofline of `step`."""
    return batch / roofline.time(step(model, batch=batch, **how), gpu, "bf16")


def memory(model: Model, gpu: Gpu, *, batch=1, context=0, form="bf16", cache="bf16") -> dict:
    """{"weights", "cache", "free"} in bytes of the GPU's memory; free is negative where it is full."""
    (batch,) = cost.whole(batch=batch)
    weights = weight_bytes(model, form)
    kept = batch * model.cache_bytes(context, CACHE_FORMATS[cache])
    return {"weights": weights, "cache": kept, "free": gpu.hbm_bytes - weights - kept}


def critical_batch(model: Model, gpu: Gpu, *, form: str = "bf16", limit: int = 2**20) -> int | None:
    """The smallest batch at which weights alone (context 0) no longer decide: compute does.

    None where that is above `limit`.
    """
    low, high = 0, 1
    while high < limit and not _computes(model, gpu, high, form):
        low, high = high, 2 * high
    if not _computes(model, gpu, high, form):
        return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if _computes(model, gpu, middle, form) else (middle, high)
    return high


def _computes(model, gpu, batch, form):
    return roofline.bound(step(model, batch=batch, form=form), gpu, "bf16") == "compute"


def accepted(guessed: int, probability: float) -> float:
    """Tokens that one step yields where `guessed` tokens are proposed and each is right, given that
    those before it are, with this probability: (1 − p^(g+1)) / (1 − p), at least the step's own one.
    """
    (guessed,) = cost.whole(guessed=guessed)
    if not 0 <= probability <= 1:
        raise ValueError(f"probability must be from 0 to 1, and is {cost.shown(probability)}.")
    return sum(probability**i for i in range(guessed + 1))
