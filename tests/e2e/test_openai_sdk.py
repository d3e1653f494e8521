"""The official client against a real server: completions, chat, streams, errors."""

from __future__ import annotations

import openai
import pytest
from proa_server import ProaServer

QUESTION = [{"role": "user", "content": "What is the capital of France?"}]


@pytest.fixture(scope="module")
def client(server: ProaServer) -> openai.OpenAI:
    return openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0, timeout=120)


@pytest.fixture(scope="module")
def model(client: openai.OpenAI) -> str:
    return client.models.list().data[0].id


def test_models_name_the_default_model(client: openai.OpenAI, model: str) -> None:
    assert model == "SmolLM2-135M-Instruct"
    assert client.models.retrieve(model).id == model


def test_a_chat_answers(client: openai.OpenAI, model: str) -> None:
    reply = client.chat.completions.create(model=model, messages=QUESTION, temperature=0, max_tokens=32)
    assert "Paris" in reply.choices[0].message.content
    assert reply.choices[0].finish_reason in ("stop", "length")
    usage = reply.usage
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
    assert 0 < usage.completion_tokens <= 32


def test_a_chat_stream_holds_the_same_text(client: openai.OpenAI, model: str) -> None:
    fields = {"model": model, "messages": QUESTION, "temperature": 0, "max_tokens": 32}
    whole = client.chat.completions.create(**fields)
    chunks = list(client.chat.completions.create(**fields, stream=True, stream_options={"include_usage": True}))
    assert chunks[0].choices[0].delta.role == "assistant"
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == whole.choices[0].message.content
    reasons = [c.choices[0].finish_reason for c in chunks if c.choices and c.choices[0].finish_reason]
    assert reasons == [whole.choices[0].finish_reason]
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    assert len(chunks) > 3


def test_completions_take_text_lists_and_ids(client: openai.OpenAI, model: str, server: ProaServer) -> None:
    fields = {"model": model, "temperature": 0, "max_tokens": 8}
    text = "The capital of France is"
    one = client.completions.create(prompt=text, **fields)
    ids = server.post("/tokenize", {"prompt": text}).json["tokens"]
    assert client.completions.create(prompt=ids, **fields).choices[0].text == one.choices[0].text
    many = client.completions.create(prompt=[text, "Water boils at", text], **fields)
    assert [choice.index for choice in many.choices] == [0, 1, 2]
    assert many.choices[0].text == many.choices[2].text == one.choices[0].text


def test_a_completion_stream_holds_the_same_text(client: openai.OpenAI, model: str) -> None:
    fields = {"model": model, "prompt": "Once upon a time", "temperature": 0, "max_tokens": 24}
    whole = client.completions.create(**fields).choices[0]
    chunks = list(client.completions.create(**fields, stream=True))
    assert "".join(c.choices[0].text for c in chunks if c.choices) == whole.text


def test_stop_strings_cut_the_text(client: openai.OpenAI, model: str) -> None:
    fields = {"model": model, "prompt": "Count: one, two, three, four,", "temperature": 0, "max_tokens": 24}
    free = client.completions.create(**fields).choices[0].text
    stop = free[5:8]
    cut = client.completions.create(**fields, stop=[stop]).choices[0]
    assert cut.text == free[: free.index(stop)]
    assert cut.finish_reason == "stop"


def test_seeds_repeat_and_choices_differ(client: openai.OpenAI, model: str) -> None:
    fields = {"model": model, "prompt": "A list of random words:", "temperature": 1.0, "max_tokens": 24, "n": 3}
    first = [c.text for c in client.completions.create(**fields, seed=7).choices]
    again = [c.text for c in client.completions.create(**fields, seed=7).choices]
    other = [c.text for c in client.completions.create(**fields, seed=8).choices]
    assert first == again
    assert first != other
    assert len(set(first)) == 3


def test_chat_logprobs(client: openai.OpenAI, model: str) -> None:
    reply = client.chat.completions.create(
        model=model, messages=QUESTION, temperature=0, max_tokens=6, logprobs=True, top_logprobs=3
    )
    content = reply.choices[0].logprobs.content
    assert len(content) == reply.usage.completion_tokens or reply.choices[0].finish_reason == "stop"
    for entry in content:
        assert len(entry.top_logprobs) >= 3
        assert entry.logprob <= 0
        assert entry.top_logprobs[0].logprob >= entry.top_logprobs[1].logprob


def test_an_unknown_model_is_404(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as caught:
        client.chat.completions.create(model="gpt-nothing", messages=QUESTION)
    assert caught.value.code == "model_not_found"
    assert caught.value.param == "model"


@pytest.mark.parametrize(
    ("fields", "code", "param"),
    [
        ({"temprature": 1}, "unknown_parameter", "temprature"),
        ({"temperature": 3}, "decimal_above_max_value", "temperature"),
        ({"max_tokens": -1}, "integer_below_min_value", "max_tokens"),
        ({"top_p": "x"}, "invalid_type", "top_p"),
        ({"max_tokens": 1_000_000}, "context_length_exceeded", "messages"),
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "not_supported", "tools"),
        ({"response_format": {"type": "json_object"}}, "not_supported", "response_format"),
    ],
)
def test_bad_fields_are_400_by_name(client: openai.OpenAI, model: str, fields: dict, code: str, param: str) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model=model, messages=QUESTION, extra_body=fields)
    assert (caught.value.code, caught.value.param) == (code, param)
    assert caught.value.type == "invalid_request_error"


def test_messages_are_required(server: ProaServer, model: str) -> None:
    reply = server.post("/v1/chat/completions", {"model": model})
    assert reply.status == 400
    assert reply.json["error"]["code"] == "missing_required_parameter"
