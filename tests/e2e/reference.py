"""What transformers says on the same GGUF file: greedy ids and logprobs of twenty prompts, in fp32."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from proa_server import ProaServer

NUM_TOKENS = 64

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


@dataclass
class Answer:
    """One prompt with the reference's continuation.

    Attributes:
        prompt: ids of the prompt.
        output: the greedy ids, NUM_TOKENS of them.
        logprobs: f32 [len(prompt) + NUM_TOKENS, vocab]; row i is the distribution of token i + 1.
    """

    prompt: list[int]
    output: list[int]
    logprobs: np.ndarray

    def of_output(self, index: int) -> np.ndarray:
        """Return the distribution the output token `index` was drawn from."""
        return self.logprobs[len(self.prompt) - 1 + index]


@dataclass
class Reference:
    """Answers to PROMPTS, in order."""

    answers: list[Answer]

    @classmethod
    def load(cls, server: ProaServer, path: Path) -> Reference:
        """Compute all answers from the GGUF file at `path`; takes about a minute."""
        import torch
        from transformers import AutoModelForCausalLM

        model = AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32)
        model.eval()
        answers = []
        with torch.inference_mode():
            for text in PROMPTS:
                prompt = server.post("/tokenize", {"prompt": text}).json["tokens"]
                output = _greedy(model, torch, prompt)
                logits = model(torch.tensor([prompt + output])).logits[0].float()
                answers.append(Answer(prompt, output, torch.log_softmax(logits, -1).numpy()))
        return cls(answers)


def _greedy(model, torch, prompt: list[int]) -> list[int]:
    """Arg-max with a key-value cache, end tokens not heeded."""
    output: list[int] = []
    past = None
    step = torch.tensor([prompt])
    for _ in range(NUM_TOKENS):
        result = model(step, past_key_values=past, use_cache=True)
        past = result.past_key_values
        output.append(int(result.logits[0, -1].argmax()))
        step = torch.tensor([[output[-1]]])
    return output
