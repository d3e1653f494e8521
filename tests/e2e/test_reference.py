"""The served model is the reference's: the same greedy tokens and logprobs, however the requests are scheduled."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from proa_server import ProaServer
from reference import NUM_TOKENS, Answer, Reference

LARGEST_BF16_MARGIN = 0.125


def ask(server: ProaServer, prompt: list[int], **fields: object) -> dict:
    """Return the single choice of a greedy completion of ids."""
    body = {
        "prompt": prompt,
        "max_tokens": NUM_TOKENS,
        "temperature": 0,
        "ignore_eos": True,
        "return_token_ids": True,
        **fields,
    }
    reply = server.post("/v1/completions", body)
    assert reply.status == 200, reply.body
    (choice,) = reply.json["choices"]
    return choice


def ask_all(server: ProaServer, reference: Reference) -> list[list[int]]:
    """Return the ids of all prompts, asked at once."""
    with ThreadPoolExecutor(len(reference.answers)) as pool:
        choices = pool.map(lambda answer: ask(server, answer.prompt), reference.answers)
    return [choice["token_ids"] for choice in choices]


def expected(reference: Reference) -> list[list[int]]:
    return [answer.output for answer in reference.answers]


def test_alone(server: ProaServer, reference: Reference) -> None:
    assert [ask(server, answer.prompt)["token_ids"] for answer in reference.answers] == expected(reference)


def test_from_the_prefix_cache(server: ProaServer, reference: Reference) -> None:
    """Prompts of several blocks, first computed, then found; the continuation is the same."""

    def continued(answer: Answer) -> list[int]:
        return ask(server, answer.prompt + answer.output[:40], max_tokens=NUM_TOKENS - 40)["token_ids"]

    rest = [answer.output[40:] for answer in reference.answers]
    for _ in range(2):
        hits = server.metric("proa:prefix_cache_hits_total")
        with ThreadPoolExecutor(len(reference.answers)) as pool:
            assert list(pool.map(continued, reference.answers)) == rest
    assert server.metric("proa:prefix_cache_hits_total") >= hits + 32 * len(reference.answers)


def test_in_a_batch_of_twenty(server: ProaServer, reference: Reference) -> None:
    assert ask_all(server, reference) == expected(reference)


def test_in_chunks_of_sixteen(reference: Reference) -> None:
    with ProaServer(["--dtype", "float32", "--max-prefill-chunk", "16", "--no-enable-prefix-caching"]) as chunked:
        chunked.wait_ready()
        assert ask_all(chunked, reference) == expected(reference)
        answer = reference.answers[1]
        longer = answer.prompt + answer.output[:40]
        assert ask(chunked, longer, max_tokens=24)["token_ids"] == answer.output[40:]


def test_after_preemption(reference: Reference) -> None:
    arguments = ["--dtype", "float32", "--max-model-len", "512", "--kv-cache-memory-bytes", "30M"]
    with ProaServer(arguments) as small:
        small.wait_ready()
        assert ask_all(small, reference) == expected(reference)
        assert small.metric("proa:num_preemptions_total") > 0
        assert small.audit()["leaked"] == 0


def test_bf16_differs_only_where_the_reference_is_undecided(reference: Reference) -> None:
    with ProaServer(["--dtype", "bfloat16"]) as half:
        half.wait_ready()
        for answer, output in zip(reference.answers, ask_all(half, reference)):
            different = [i for i in range(NUM_TOKENS) if output[i] != answer.output[i]]
            if different:
                two = np.sort(answer.of_output(different[0]))[-2:]
                assert two[1] - two[0] <= LARGEST_BF16_MARGIN, f"{answer.prompt} at {different[0]}"


def test_logprobs_of_sampled_and_top_five(server: ProaServer, reference: Reference) -> None:
    for answer in reference.answers:
        choice = ask(server, answer.prompt, logprobs=5, return_tokens_as_token_ids=True)
        assert choice["token_ids"] == answer.output
        for index, token in enumerate(answer.output):
            row = answer.of_output(index)
            assert choice["logprobs"]["token_logprobs"][index] == pytest.approx(row[token], abs=1e-4)
            check_top(choice["logprobs"]["top_logprobs"][index], row)


def test_prompt_logprobs(server: ProaServer, reference: Reference) -> None:
    for answer in reference.answers[:5]:
        choice = ask(server, answer.prompt, echo=True, logprobs=5, max_tokens=1, return_tokens_as_token_ids=True)
        values = choice["logprobs"]["token_logprobs"]
        assert values[0] is None
        for position in range(1, len(answer.prompt)):
            row = answer.logprobs[position - 1]
            assert values[position] == pytest.approx(row[answer.prompt[position]], abs=1e-4)
            check_top(choice["logprobs"]["top_logprobs"][position], row)


def check_top(top: dict[str, float], row: np.ndarray) -> None:
    """The five best (and the sampled token where it is not among them) have the reference's values."""
    assert len(top) in (5, 6)
    for name, value in top.items():
        assert value == pytest.approx(row[int(name.removeprefix("token_id:"))], abs=1e-4)
    assert max(top.values()) == pytest.approx(row.max(), abs=1e-4)
    fifth = np.sort(row)[-5]
    assert sorted(top.values(), reverse=True)[4] == pytest.approx(fifth, abs=1e-4)


def test_text_becomes_the_ids_the_reference_was_asked(server: ProaServer, reference: Reference) -> None:
    for answer in reference.answers:
        assert server.post("/tokenize", {"prompt": answer.text}).json["tokens"] == answer.prompt
        choice = ask(server, answer.prompt, max_tokens=8)
        same = server.post(
            "/v1/completions", {"prompt": answer.text, "max_tokens": 8, "temperature": 0, "ignore_eos": True}
        )
        assert same.json["choices"][0]["text"] == choice["text"]
