"""GPT-2 and Llama in plain PyTorch, from their papers and the files' names alone: nothing here
knows how Foresail computes. Used by training_test.py."""

import json
import struct

import numpy
import torch
from torch.nn import functional

import dropout

EPSILON = 1e-5
BETAS = (0.9, 0.95)
ROTARY_BASE = 10000.0


def read_safetensors(path):
    """The format, from its description: length, JSON header, bytes."""
    raw = path.read_bytes()
    length, = struct.unpack("<Q", raw[:8])
    header = json.loads(raw[8:8 + length])
    header.pop("__metadata__", None)
    tensors = {}
    for name, entry in header.items():
        assert entry["dtype"] == "F32"
        begin, end = entry["data_offsets"]
        values = numpy.frombuffer(raw[8 + length + begin:8 + length + end], "<f4")
        tensors[name] = torch.from_numpy(values.reshape(entry["shape"]).copy())
    return tensors


def attention(query, key, value, window, drop):
    """Causal, [samples, heads, positions, size] each; a query sees `window` keys, or all if 0.
    `drop` takes probabilities away."""
    positions = query.shape[2]
    distance = torch.arange(positions).unsqueeze(1) - torch.arange(positions)
    hidden = distance < 0
    if window:
        hidden = hidden | (distance >= window)
    shared = query.shape[1] // key.shape[1]
    key, value = (part.repeat_interleave(shared, 1) for part in (key, value))
    scores = query @ key.transpose(2, 3) / query.shape[3] ** 0.5
    weights = functional.softmax(scores.masked_fill(hidden, float("-inf")), -1)
    return (drop(weights) @ value).transpose(1, 2).flatten(2)


def heads_of(rows, count):
    return rows.unflatten(-1, (count, -1)).transpose(1, 2)


class Model:
    """`config` is a Hugging Face config.json. With `parallel` attention and MLP stand side by side
    behind the first norm, as in PaLM, and the second norm goes."""

    def __init__(self, config, tensors, parallel=False, window=0):
        self.config, self.parallel, self.window = config, parallel, window
        self.tensors = {name: tensor.clone().requires_grad_() for name, tensor in tensors.items()
                        if not (parallel and self.second_norm in name)}

        self.dropout = dropout.NoDropout()

    def take(self, name):
        return self.tensors[name]

    def block(self, x, index):
        layer = self.layers + f".{index}."
        normed = self.norm(x, layer + self.first_norm)
        attended = self.attend(normed, layer, lambda rows: self.dropout.attention(rows, index))
        if self.parallel:
            both = attended + self.mlp(normed, layer)
            return x + self.dropout.hidden(both, dropout.MLP, index)
        x = x + self.dropout.hidden(attended, dropout.PROJECTION, index)
        mlp = self.mlp(self.norm(x, layer + self.second_norm), layer)
        return x + self.dropout.hidden(mlp, dropout.MLP, index)

    def loss(self, samples):
        """Of [samples, positions + 1] tokens."""
        logits = self.logits(samples[:, :-1])
        return functional.cross_entropy(logits.flatten(0, 1), samples[:, 1:].flatten())

    def optimizer(self, rate, decay):
        """AdamW; biases and norms do not decay."""
        kept = [tensor for tensor in self.tensors.values() if tensor.dim() < 2]
        decayed = [tensor for tensor in self.tensors.values() if tensor.dim() == 2]
        groups = [{"params": kept, "weight_decay": 0}, {"params": decayed, "weight_decay": decay}]
        return torch.optim.AdamW(groups, lr=rate, betas=BETAS, eps=1e-8)

    def train(self, batches, *, rate, decay, clip, dropouts=None):
        """One step per batch. Returns losses and gradient norms, before clipping. `dropouts`: of
        the steps, if there are any."""
        optimizer = self.optimizer(rate, decay)
        losses, norms = [], []
        for step, batch in enumerate(batches):
            if dropouts:
                self.dropout = dropouts[step]
            optimizer.zero_grad()
            loss = self.loss(batch)
            loss.backward()
            norm = torch.nn.utils.clip_grad_norm_(self.tensors.values(), clip)
            optimizer.step()
            losses.append(loss.item())
            norms.append(norm.item())
        return losses, norms


class Gpt2(Model):
    first_norm, second_norm, layers = "ln_1", "ln_2", "transformer.h"

    def norm(self, x, name):
        return functional.layer_norm(x, x.shape[-1:], self.take(name + ".weight"),
                                     self.take(name + ".bias"), EPSILON)

    def conv1d(self, x, name):
        return x @ self.take(name + ".weight") + self.take(name + ".bias")

    def attend(self, x, layer, drop):
        query, key, value = self.conv1d(x, layer + "attn.c_attn").chunk(3, -1)
        heads = [heads_of(part, self.config["n_head"]) for part in (query, key, value)]
        return self.conv1d(attention(*heads, self.window, drop), layer + "attn.c_proj")

    def mlp(self, x, layer):
        inner = functional.gelu(self.conv1d(x, layer + "mlp.c_fc"), approximate="tanh")
        return self.conv1d(inner, layer + "mlp.c_proj")

    def logits(self, tokens):
        words = self.take("transformer.wte.weight")
        positions = self.take("transformer.wpe.weight")[:tokens.shape[1]]
        x = self.dropout.hidden(functional.embedding(tokens, words) + positions, dropout.EMBEDDING)
        for i in range(self.config["n_layer"]):
            x = self.block(x, i)
        head = self.tensors.get("lm_head.weight", words)
        return functional.linear(self.norm(x, "transformer.ln_f"), head)


class Llama(Model):
    first_norm, second_norm = "input_layernorm", "post_attention_layernorm"
    layers = "model.layers"

    def norm(self, x, name):
        scale = torch.rsqrt((x * x).mean(-1, keepdim=True) + EPSILON)
        return x * scale * self.take(name + ".weight")

    def linear(self, x, name):
        return functional.linear(x, self.take(name + ".weight"))

    def rotated(self, heads):
        half = heads.shape[3] // 2
        frequencies = ROTARY_BASE ** (-torch.arange(half, dtype=torch.float64) / half)
        angles = torch.outer(torch.arange(heads.shape[2], dtype=torch.float64), frequencies)
        cos, sin = angles.cos().to(heads.dtype), angles.sin().to(heads.dtype)
        first, second = heads.split(half, -1)
        return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)

    def attend(self, x, layer, drop):
        count, shared = (self.config["num_attention_heads"], self.config["num_key_value_heads"])
        query = self.rotated(heads_of(self.linear(x, layer + "self_attn.q_proj"), count))
        key = self.rotated(heads_of(self.linear(x, layer + "self_attn.k_proj"), shared))
        value = heads_of(self.linear(x, layer + "self_attn.v_proj"), shared)
        attended = attention(query, key, value, self.window, drop)
        return self.linear(attended, layer + "self_attn.o_proj")

    def mlp(self, x, layer):
        gate = functional.silu(self.linear(x, layer + "mlp.gate_proj"))
        return self.linear(gate * self.linear(x, layer + "mlp.up_proj"), layer + "mlp.down_proj")

    def logits(self, tokens):
        words = self.take("model.embed_tokens.weight")
        x = self.dropout.hidden(functional.embedding(tokens, words), dropout.EMBEDDING)
        for i in range(self.config["num_hidden_layers"]):
            x = self.block(x, i)
        head = self.tensors.get("lm_head.weight", words)
        return functional.linear(self.norm(x, "model.norm"), head)
