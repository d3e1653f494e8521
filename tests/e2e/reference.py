"""What transformers says on the same GGUF file: greedy ids and logprobs of twenty prompts, in fp32.

The ids lie in `tests/fixtures/reference/greedy.json`, made by `make_reference.py`: decoding them takes minutes.
One forward pass over each, in every run, shows that they are the arg-max at each position and gives the logprobs.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

NUM_TOKENS = 64
GOLDEN = Path(__file__).resolve().parents[1] / "fixtures" / "reference" / "greedy.json"


@dataclass
class Answer:
    """One prompt with the reference's continuation.

    Attributes:
        text: the prompt.
        prompt: ids of the prompt.
        output: the greedy ids, NUM_TOKENS of them.
        logprobs: f32 [len(prompt) + NUM_TOKENS, vocab]; row i is the distribution of token i + 1.
    """

    text: str
    prompt: list[int]
    output: list[int]
    logprobs: np.ndarray

    def of_output(self, index: int) -> np.ndarray:
        """Return the distribution the output token `index` was drawn from."""
        return self.logprobs[len(self.prompt) - 1 + index]


@dataclass
class Reference:
    """Answers to the twenty prompts, in order."""

    answers: list[Answer]

    @classmethod
    def load(cls, path: Path) -> Reference:
        """Read the ids and compute their logprobs with the GGUF file at `path`."""
        import torch

        model = reference_model(path)
        answers = []
        with torch.inference_mode():
            for entry in json.loads(GOLDEN.read_text()):
                ids = torch.tensor([entry["prompt"] + entry["output"]])
                logprobs = torch.log_softmax(model(ids).logits[0].float(), -1).numpy()
                answer = Answer(entry["text"], entry["prompt"], entry["output"], logprobs)
                best = [int(answer.of_output(i).argmax()) for i in range(NUM_TOKENS)]
                assert best == answer.output, "the golden ids are not the reference's: run make_reference.py"
                answers.append(answer)
        return cls(answers)


def reference_model(path: Path) -> Any:
    """Return transformers' own model of a GGUF file, in fp32."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32)
    return model.eval()
