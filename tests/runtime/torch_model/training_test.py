#!/usr/bin/env python3
"""One process of Foresail trains what an independent PyTorch model trains: from the same weights,
on the same samples, losses and gradient norms within 1e-5 in every step.

    training_test.py FOLDER_OF_FORESAIL

Exit status 77: this Python has no torch."""

import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

import samples

try:
    import torch

    import dropout
    import model
except ImportError as missing:
    print(f"skipped: {sys.executable} has no torch: {missing} (Debian: python3-torch)")
    sys.exit(77)

ROOT = pathlib.Path(__file__).resolve().parents[3]
BIN = pathlib.Path(sys.argv.pop() if len(sys.argv) > 1 else ROOT / "build/dev/bin")
LIMIT = 1e-5
STEPS, BATCH, LENGTH, SEED = 10, 8, 48, 11
RATE, DECAY, CLIP = 1e-3, 0.1, 2.7  # the first norms are above CLIP, the last ones below

GPT2 = {"base": "gpt_tiny", "layers": 3, "vocab": 257}
LLAMA = {**GPT2, "kv_heads": 2, "ffn": 320, "activation": "swiglu", "norm": "rms_norm",
         "positions": "rotary", "max_positions": 0, "biases": False}
WINDOW = {"attention": "sliding_window", "window": 12}


def documents():
    """Paragraphs of the licence as bytes with 256 behind: 1.6 epochs are trained on."""
    text = (ROOT / "LICENSE").read_bytes()[:2400]
    return [[*paragraph, 256] for paragraph in text.split(b"\n\n")]


class Training(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.folder = pathlib.Path(scratch.name)
        samples.write_corpus(self.folder / "corpus", documents())

    def command(self, *arguments):
        line = [str(BIN / "foresail"), *map(str, arguments)]
        done = subprocess.run(line, capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)

    def run_foresail(self, shape, *more, steps, rate, stack=None):
        question = {
            "foresail": 1, "model": shape, "cluster": {"name": "host", "gpus": 1},
            "layout": {"microbatch_size": 2},
            "training": {"global_batch_size": BATCH, "sequence_length": LENGTH, "steps": steps,
                         "precision": "fp32", "optimizer": "adamw", "weight_decay": DECAY,
                         "learning_rate": rate, "clip": CLIP, "data": "corpus"},
            "stack": stack or {"flash_attention": False}, "seed": SEED}
        scenario = self.folder / "scenario.yaml"
        scenario.write_text(json.dumps(question), encoding="utf-8")
        self.command("plan", scenario, "-o", self.folder / "plan.yaml")
        self.command("run", self.folder / "plan.yaml", "--launch", 1, "-o", self.folder / "run",
                     *more)
        return json.loads((self.folder / "run/run.json").read_text(encoding="utf-8"))

    def weights(self, shape, *, steps, rate):
        """Those that Foresail writes after `steps`, and their config.json."""
        folder = self.folder / "weights"
        self.run_foresail(shape, "--save-weights", folder, steps=steps, rate=rate)
        return (json.loads((folder / "config.json").read_text(encoding="utf-8")),
                model.read_safetensors(folder / "model.safetensors"))

    def assert_trains_alike(self, truth, run, dropouts=None):
        draw = samples.Samples(documents(), LENGTH, SEED)
        self.assertLess(draw.per_epoch, STEPS * BATCH)
        batches = [torch.tensor([draw[step * BATCH + i] for i in range(BATCH)])
                   for step in range(STEPS)]
        losses, norms = truth.train(batches, rate=RATE, decay=DECAY, clip=CLIP, dropouts=dropouts)
        apart = {}
        for name, ours, theirs in (("loss", run["losses"], losses),
                                   ("norm", run["grad_norms"], norms)):
            self.assertEqual(len(ours), STEPS)
            apart[name] = max(abs(a / b - 1) for a, b in zip(ours, theirs))
        print(f"{self.id().split('.')[-1]}: loss {losses[0]:.4f} to {losses[-1]:.4f}, norm "
              f"{norms[0]:.3f} to {norms[-1]:.3f}; apart: loss {apart['loss']:.1e}, norm "
              f"{apart['norm']:.1e}", flush=True)
        self.assertLess(losses[-1], 0.9 * losses[0])
        self.assertTrue(min(norms) < CLIP < max(norms))
        self.assertLessEqual(apart["loss"], LIMIT)
        self.assertLessEqual(apart["norm"], LIMIT)

    def check_own_weights(self, kind, shape):
        """From weights that Foresail trained and wrote, no bias or norm of which is trivial."""
        config, tensors = self.weights(shape, steps=3, rate=0.001)
        run = self.run_foresail(shape, "--weights", self.folder / "weights", steps=STEPS, rate=RATE)
        self.assert_trains_alike(kind(config, tensors), run)

    def check_first_weights(self, kind, shape, changes, **options):
        """From first weights, which a model without a Hugging Face name shares with the plain one:
        they depend on the seed and the names alone. Written by a step with rate 0."""
        config, tensors = self.weights(shape, steps=1, rate=0)
        run = self.run_foresail({**shape, **changes}, steps=STEPS, rate=RATE)
        self.assert_trains_alike(kind(config, tensors, **options), run)

    def check_dropout(self, kind, shape, stack=None, **options):
        """From first weights, which do not depend on dropout; masks from the documentation."""
        config, tensors = self.weights(shape, steps=1, rate=0)
        changes = {"dropout": True, **({"block": "parallel"} if options else {})}
        run = self.run_foresail({**shape, **changes}, steps=STEPS, rate=RATE, stack=stack)
        dropouts = [dropout.Dropout(SEED, step) for step in range(STEPS)]
        self.assert_trains_alike(kind(config, tensors, **options), run, dropouts)

    def test_gpt2_with_dropout(self):
        self.check_dropout(model.Gpt2, GPT2)

    def test_gpt2_with_dropout_in_parallel_blocks(self):
        self.check_dropout(model.Gpt2, GPT2, parallel=True)

    def test_llama_with_dropout_in_fused_attention(self):
        self.check_dropout(model.Llama, LLAMA, {"flash_attention": True})

    def test_llama_with_dropout_kernel_by_kernel(self):
        self.check_dropout(model.Llama, LLAMA, {"flash_attention": False, "fused_kernels": False})

    def test_gpt2(self):
        self.check_own_weights(model.Gpt2, {**GPT2, "tied_embeddings": True})

    def test_gpt2_with_a_matrix_of_its_own_in_the_head(self):
        self.check_own_weights(model.Gpt2, GPT2)

    def test_llama_with_grouped_queries(self):
        self.check_own_weights(model.Llama, LLAMA)

    def test_gpt2_with_a_parallel_block(self):
        self.check_first_weights(model.Gpt2, GPT2, {"block": "parallel"}, parallel=True)

    def test_gpt2_with_a_sliding_window(self):
        self.check_first_weights(model.Gpt2, GPT2, WINDOW, window=WINDOW["window"])

    def test_llama_with_a_parallel_block_and_a_sliding_window(self):
        self.check_first_weights(model.Llama, LLAMA, {"block": "parallel", **WINDOW},
                                 parallel=True, window=WINDOW["window"])


if __name__ == "__main__":
    torch.set_num_threads(1)
    unittest.main(verbosity=2)
