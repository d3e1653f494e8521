"""Chat templates against transformers, byte for byte."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.utils.chat_template_utils import render_jinja_template

from proa import _rust

TEMPLATES = Path(__file__).parents[2] / "fixtures" / "templates"
NAMES = sorted(path.stem for path in TEMPLATES.glob("*.jinja"))
Ending = Literal["generate", "closed", "open"]
ENDINGS: tuple[Ending, Ending] = ("generate", "closed")
SPECIAL = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Wetter für einen Ort – <b>\"exact\"</b> & 'quoted' 天気",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "description": "Stadt, z. B. Köln"},
                "days": {"type": "integer", "default": 3, "minimum": 1.0, "maximum": 1e16},
                "unit": {"type": ["string", "null"], "enum": ["°C", "°F", None]},
                "weights": {"type": "object", "additionalProperties": {"type": "number"}, "default": {"a": 0.1}},
            },
            "required": ["city"],
        },
    },
}
CLOCK = {
    "type": "function",
    "function": {"name": "now", "description": "", "parameters": {"type": "object", "properties": {}}},
}


# Python escapes code points that its own Unicode version does not assign; which ones depends on its age.
TEXT = st.text(st.characters(exclude_categories=["Cs", "Cn"]), max_size=40)


def call(name: str, arguments: dict[str, Any], id: str = "abcdefghi") -> dict[str, Any]:
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


CONVERSATIONS: dict[str, list[dict[str, Any]]] = {
    "user": [{"role": "user", "content": "Hello"}],
    "blanks": [{"role": "user", "content": "  Hello\n there a é\t\n"}],
    "empty": [{"role": "user", "content": ""}],
    "system": [{"role": "system", "content": "Sei höflich."}, {"role": "user", "content": "Grüße 👋🏽 你好"}],
    "turns": [
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": " two \n"},
        {"role": "user", "content": "three <|im_end|> {{ x }} {% y %}"},
    ],
    "thinking": [
        {"role": "user", "content": "2+2?"},
        {"role": "assistant", "content": "<think>\nadd\n</think>\n\n4"},
        {"role": "user", "content": "sure?"},
        {"role": "assistant", "content": "yes", "reasoning_content": "\nhm\n"},
    ],
    "tool_call": [
        {"role": "user", "content": "Wetter?"},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [call("get_weather", {"city": "Köln", "x": 1.5, "y": [None, True, 1e-7]})],
        },
        {"role": "tool", "content": "21.5 °C", "tool_call_id": "abcdefghi", "name": "get_weather"},
        {"role": "assistant", "content": "Es sind 21,5 °C."},
        {"role": "user", "content": "danke"},
    ],
    "two_calls": [
        {"role": "user", "content": "beides"},
        {
            "role": "assistant",
            "content": "ok",
            "tool_calls": [
                call("now", {}, "111111111"),
                call("get_weather", {"city": '\u2028"', "n": -0.0}, "222222222"),
            ],
        },
        {"role": "tool", "content": "noon", "tool_call_id": "111111111"},
        {"role": "tool", "content": '{"t": 1}', "tool_call_id": "222222222"},
    ],
    "wrong_order": [{"role": "assistant", "content": "a"}, {"role": "assistant", "content": "b"}],
}


def theirs(
    source: str, messages: list[dict[str, Any]], tools: Any, kwargs: dict[str, Any], ending: Ending = "generate"
) -> str | None:
    """What transformers renders; None when the template raises."""
    copies = json.loads(json.dumps(messages))
    options = {"add_generation_prompt": ending == "generate", "continue_final_message": ending == "open"}
    try:
        rendered, _ = render_jinja_template([copies], tools=tools, chat_template=source, **options, **SPECIAL, **kwargs)
    except Exception:  # noqa: BLE001 - whatever a template raises there, ours has to raise too
        return None
    return rendered[0]


def ours(
    source: str, messages: list[dict[str, Any]], tools: Any, kwargs: dict[str, Any], ending: Ending = "generate"
) -> str | None:
    template = _rust.ChatTemplate(source, SPECIAL)
    sent = json.loads(json.dumps(messages))
    for message in sent:
        for tool_call in message.get("tool_calls", []):
            tool_call["function"]["arguments"] = json.dumps(tool_call["function"]["arguments"])
    try:
        return template.render(json.dumps(sent), json.dumps(tools) if tools else None, json.dumps(kwargs), ending)
    except ValueError:
        return None


@pytest.mark.parametrize("conversation", CONVERSATIONS)
@pytest.mark.parametrize("name", NAMES)
def test_equals_transformers(name: str, conversation: str) -> None:
    source = (TEMPLATES / f"{name}.jinja").read_text()
    messages = CONVERSATIONS[conversation]
    variants = itertools.product(
        [None, [WEATHER], [CLOCK, WEATHER]],
        [{}, {"enable_thinking": False, "tools_in_user_message": False}],
        ENDINGS,
    )
    for tools, kwargs, ending in variants:
        expected = theirs(source, messages, tools, kwargs, ending)
        assert ours(source, messages, tools, kwargs, ending) == expected


@pytest.mark.parametrize("text", ["The answer is", "The answer is ", " x", "a\n\n"])
@pytest.mark.parametrize("name", NAMES)
def test_continued_messages_equal_transformers(name: str, text: str) -> None:
    source = (TEMPLATES / f"{name}.jinja").read_text()
    messages = [{"role": "user", "content": "q"}, {"role": "assistant", "content": text}]
    assert ours(source, messages, None, {}, "open") == theirs(source, messages, None, {}, "open")


def test_the_default_model_renders_as_in_transformers(default_model: Path) -> None:
    source = _rust.open_model(str(default_model)).chat_template
    assert source is not None
    for messages in CONVERSATIONS.values():
        for ending in ENDINGS:
            expected = theirs(source, messages, None, {}, ending)
            assert ours(source, messages, None, {}, ending) == expected


@given(text=TEXT, system=TEXT)
@settings(max_examples=60, deadline=None)
def test_any_text_equals_transformers(text: str, system: str) -> None:
    messages = [{"role": "system", "content": system}, {"role": "user", "content": text}]
    for name in ("llama3", "qwen25_tools", "qwen3", "gemma3", "mistral", "deepseek"):
        source = (TEMPLATES / f"{name}.jinja").read_text()
        expected = theirs(source, messages, [WEATHER], {}, "generate")
        assert ours(source, messages, [WEATHER], {}, "generate") == expected


FLOATS = st.floats(-1e15, 1e15).map(lambda x: round(x, 6)) | st.sampled_from([1e16, 1e22, 1.5e300, 1e-5, -0.0])
JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | FLOATS | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=12,
)


@given(value=JSON_VALUES)
@settings(max_examples=300, deadline=None)
def test_values_are_written_as_in_python(value: Any) -> None:
    source = "{{ v | tojson }}\n{{ v | tojson(indent=3, ensure_ascii=true) }}\n{{ v }}\n{{ v | string }}"
    messages = [{"role": "user", "content": "x"}]
    assert ours(source, messages, None, {"v": value}) == theirs(source, messages, None, {"v": value})
