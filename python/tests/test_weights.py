"""Weights that the runtime wrote, opened by their Hugging Face names in models of plain numpy."""

import json
import struct

import numpy
import pytest

from foresail import data

SAMPLES, LENGTH, VOCAB = 4, 32, 257
EPSILON = 1e-5


def open_safetensors(path):
    """The format, from its description: length, JSON header, bytes."""
    raw = path.read_bytes()
    length, = struct.unpack("<Q", raw[:8])
    header = json.loads(raw[8:8 + length])
    header.pop("__metadata__")
    tensors = {}
    for name, entry in header.items():
        assert entry["dtype"] == "F32"
        begin, end = entry["data_offsets"]
        values = numpy.frombuffer(raw[8 + length + begin:8 + length + end], "<f4")
        tensors[name] = values.reshape(entry["shape"]).astype(numpy.float64)
    return tensors


def softmax(scores):
    weights = numpy.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)


def attention(query, key, value):
    """Causal; [heads, positions, size] each."""
    positions = query.shape[1]
    scores = query @ key.transpose(0, 2, 1) / numpy.sqrt(query.shape[2])
    scores[:, numpy.triu(numpy.ones((positions, positions), bool), 1)] = -numpy.inf
    return (softmax(scores) @ value).transpose(1, 0, 2).reshape(positions, -1)


def heads_of(rows, count):
    return rows.reshape(rows.shape[0], count, -1).transpose(1, 0, 2)


class Gpt2:
    def __init__(self, config, tensors):
        self.config, self.t = config, tensors

    def norm(self, x, name):
        centred = x - x.mean(-1, keepdims=True)
        scale = numpy.sqrt((centred ** 2).mean(-1, keepdims=True) + EPSILON)
        return centred / scale * self.t[name + ".weight"] + self.t[name + ".bias"]

    def conv1d(self, x, name):
        return x @ self.t[name + ".weight"] + self.t[name + ".bias"]

    def logits(self, tokens):
        words = self.t["transformer.wte.weight"]
        x = words[tokens] + self.t["transformer.wpe.weight"][:len(tokens)]
        for i in range(self.config["n_layer"]):
            layer = f"transformer.h.{i}."
            qkv = self.conv1d(self.norm(x, layer + "ln_1"), layer + "attn.c_attn")
            heads = [heads_of(part, self.config["n_head"]) for part in numpy.split(qkv, 3, -1)]
            x = x + self.conv1d(attention(*heads), layer + "attn.c_proj")
            inner = self.conv1d(self.norm(x, layer + "ln_2"), layer + "mlp.c_fc")
            inner = 0.5 * inner * (1 + numpy.tanh(numpy.sqrt(2 / numpy.pi)
                                                  * (inner + 0.044715 * inner ** 3)))
            x = x + self.conv1d(inner, layer + "mlp.c_proj")
        return self.norm(x, "transformer.ln_f") @ self.t.get("lm_head.weight", words).T


class Llama:
    def __init__(self, config, tensors):
        self.config, self.t = config, tensors

    def norm(self, x, name):
        scale = numpy.sqrt((x ** 2).mean(-1, keepdims=True) + EPSILON)
        return x / scale * self.t[name + ".weight"]

    def linear(self, x, name):
        return x @ self.t[name + ".weight"].T

    def rotated(self, rows, count):
        heads = heads_of(rows, count)
        half = heads.shape[2] // 2
        frequencies = self.config["rope_theta"] ** (-numpy.arange(half) / half)
        angles = numpy.outer(numpy.arange(heads.shape[1]), frequencies)
        first, second = heads[..., :half], heads[..., half:]
        return numpy.concatenate([first * numpy.cos(angles) - second * numpy.sin(angles),
                                  second * numpy.cos(angles) + first * numpy.sin(angles)], -1)

    def logits(self, tokens):
        x = self.t["model.embed_tokens.weight"][tokens]
        count, shared = (self.config["num_attention_heads"], self.config["num_key_value_heads"])
        for i in range(self.config["num_hidden_layers"]):
            layer = f"model.layers.{i}."
            normed = self.norm(x, layer + "input_layernorm")
            query = self.rotated(self.linear(normed, layer + "self_attn.q_proj"), count)
            key = self.rotated(self.linear(normed, layer + "self_attn.k_proj"), shared)
            value = heads_of(self.linear(normed, layer + "self_attn.v_proj"), shared)
            key, value = (numpy.repeat(part, count // shared, 0) for part in (key, value))
            x = x + self.linear(attention(query, key, value), layer + "self_attn.o_proj")
            normed = self.norm(x, layer + "post_attention_layernorm")
            gate = self.linear(normed, layer + "mlp.gate_proj")
            inner = gate / (1 + numpy.exp(-gate)) * self.linear(normed, layer + "mlp.up_proj")
            x = x + self.linear(inner, layer + "mlp.down_proj")
        return self.linear(self.norm(x, "model.norm"), "lm_head")


def loss_of(model, tokens):
    """Mean over all samples of one epoch of a single document."""
    losses = []
    for k in range(SAMPLES):
        sample = tokens[k * LENGTH:k * LENGTH + LENGTH + 1]
        probabilities = softmax(model.logits(sample[:-1]))
        losses.append(-numpy.log(probabilities[numpy.arange(LENGTH), sample[1:]]).mean())
    return numpy.mean(losses)


MODELS = {
    "gpt2": (Gpt2, {"tied_embeddings": True}),
    "gpt2_untied": (Gpt2, {}),
    "llama": (Llama, {"positions": "rotary", "norm": "rms_norm", "activation": "swiglu",
                      "biases": False, "kv_heads": 2, "max_positions": 0}),
}


@pytest.mark.parametrize("name", MODELS)
def test_an_independent_model_has_the_runtimes_loss(tmp_path, commands, root, name):
    kind, changes = MODELS[name]
    prose = (root / "docs/reference/scenario.md").read_bytes()[:SAMPLES * LENGTH]
    data.write(tmp_path / "corpus", [prose.decode()], data.Bytes())
    tokens = numpy.array([*prose, data.END_OF_DOCUMENT])
    question = {
        "foresail": 1,
        "model": {"base": "gpt_tiny", "vocab": VOCAB, "layers": 2, **changes},
        "cluster": {"name": "host", "gpus": 1}, "layout": {},
        "training": {"global_batch_size": SAMPLES, "sequence_length": LENGTH, "precision": "fp32",
                     "learning_rate": 0.003, "steps": 3, "data": "corpus"},
        "stack": {"flash_attention": False}}
    scenario = tmp_path / "scenario.yaml"
    scenario.write_text(json.dumps(question), encoding="utf-8")
    first = commands.train(scenario, tmp_path, ranks=1,
                           more=["--save-weights", tmp_path / "weights"])
    assert first["losses"][2] < first["losses"][0]
    model = kind(json.loads((tmp_path / "weights/config.json").read_text(encoding="utf-8")),
                 open_safetensors(tmp_path / "weights/model.safetensors"))
    expected = loss_of(model, tokens)

    # The same, and the same from two ranks that share the model.
    for ranks, layout in ((1, {}), (2, {"tp": 2})):
        question["layout"], question["cluster"]["gpus"] = layout, ranks
        scenario.write_text(json.dumps(question), encoding="utf-8")
        run = commands.train(scenario, tmp_path, ranks=ranks,
                             more=["--weights", tmp_path / "weights", "--steps", 1])
        assert abs(run["losses"][0] - expected) < 1e-5
