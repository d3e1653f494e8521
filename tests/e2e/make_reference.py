"""Writes `tests/fixtures/reference/greedy.json`: what transformers generates greedily, end tokens not heeded.

PYTHONPATH=python python tests/e2e/make_reference.py PATH-OF-THE-DEFAULT-MODEL
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from reference import GOLDEN, NUM_TOKENS, reference_model

from proa import _rust

PROMPTS = [
    "The capital of France is",
    "Once upon a time, in a small village by the sea,",
    "def fibonacci(n):\n    ",
    "Water boils at a temperature of",
    "The three primary colours are",
    "Dear Sir or Madam,\n\nI am writing to",
    "In 1969, the first human",
    "To bake bread you need",
    "1, 1, 2, 3, 5, 8,",
    "Die Hauptstadt von Deutschland ist",
    "The mitochondria is the",
    "import numpy as np\n\nx = np.",
    "A proa is a boat with",
    "Q: What is photosynthesis?\nA:",
    "The quick brown fox",
    "List of planets in the solar system:\n1.",
    "She opened the door and saw",
    "The derivative of x squared is",
    "Shakespeare wrote",
    "I think, therefore",
]


def greedy(model: Any, prompt: list[int]) -> list[int]:
    """Return the arg-max ids after `prompt`, decoded with a key-value cache."""
    output: list[int] = []
    cache = None
    step = torch.tensor([prompt])
    for _ in range(NUM_TOKENS):
        result = model(step, past_key_values=cache, use_cache=True)
        cache = result.past_key_values
        output.append(int(result.logits[0, -1].argmax()))
        step = torch.tensor([[output[-1]]])
    return output


def main() -> None:
    """Write the file."""
    path = Path(sys.argv[1])
    tokenizer = _rust.Tokenizer(_rust.open_model(str(path)))
    model = reference_model(path)
    entries = []
    with torch.inference_mode():
        for text in PROMPTS:
            prompt = tokenizer.encode(text)
            entries.append({"text": text, "prompt": prompt, "output": greedy(model, prompt)})
    GOLDEN.write_text("[\n" + ",\n".join(f"  {json.dumps(entry)}" for entry in entries) + "\n]\n")


if __name__ == "__main__":
    main()
