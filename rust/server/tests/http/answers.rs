//! What comes back, whole and as a stream, over real sockets (http-surface.md sections 3 and 8).

use std::time::Duration;

use crate::served::{Served, Wishes, bytes_of, echoing, engine, scripted, start};
use limits::Finish;
use mock_engine::{MockConfig, Script};
use serde_json::{Value, json};

/// The text and finish of each choice of a stream, after asserting one finish each with nothing behind it.
fn join(events: &[Value], choices: usize) -> Vec<(String, Value, Value)> {
    let mut joined = vec![(String::new(), Value::Null, Value::Null); choices];
    for choice in events
        .iter()
        .flat_map(|event| event["choices"].as_array().unwrap())
    {
        let (text, finish, stop) = &mut joined[choice["index"].as_u64().unwrap() as usize];
        assert!(finish.is_null(), "something after a finish: {choice}");
        let piece = choice["delta"]["content"]
            .as_str()
            .or(choice["text"].as_str());
        text.push_str(piece.unwrap_or(""));
        *finish = choice["finish_reason"].clone();
        *stop = choice["stop_reason"].clone();
    }
    assert!(
        joined.iter().all(|(_, finish, _)| !finish.is_null()),
        "a choice without finish"
    );
    joined
}

async fn says(text: &'static str) -> Served {
    scripted(move |_| Script::of(bytes_of(text))).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_completion_has_the_shape_clients_expect() {
    let served = says("hello").await;
    let body = served.complete(r#""max_tokens":5"#).await.ok();
    assert!(body["id"].as_str().unwrap().starts_with("cmpl-"));
    assert_eq!(body["object"], "text_completion");
    assert!(body["created"].is_u64() && body["system_fingerprint"].is_string());
    let choice = json!({"index": 0, "text": "hello", "logprobs": null, "finish_reason": "length", "stop_reason": null});
    assert_eq!(body["choices"], json!([choice]));
    let usage = json!({"prompt_tokens": 1, "completion_tokens": 5, "total_tokens": 6, "prompt_tokens_details": {"cached_tokens": 0}});
    assert_eq!(body["usage"], usage);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_chat_has_the_shape_clients_expect() {
    let served = says("hello").await;
    let body = served
        .chat(r#""max_completion_tokens":5,"metadata":{"k":"v"}"#)
        .await
        .ok();
    assert!(body["id"].as_str().unwrap().starts_with("chatcmpl-"));
    assert_eq!(body["object"], "chat.completion");
    let message = json!({"role": "assistant", "content": "hello", "refusal": null});
    assert_eq!(body["choices"][0]["message"], message);
    assert_eq!(body["choices"][0]["logprobs"], Value::Null);
    assert_eq!(body["metadata"], json!({"k": "v"}));
    assert!(body.get("timings").is_none() && body.get("ignored_fields").is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn prompts_and_choices_are_numbered_in_order() {
    let served = echoing().await;
    let fields = r#""prompt":["a","bc"],"n":2,"max_tokens":4"#;
    let body = served.complete(fields).await.ok();
    let texts: Vec<_> = body["choices"]
        .as_array()
        .unwrap()
        .iter()
        .map(|choice| choice["text"].as_str().unwrap())
        .collect();
    assert_eq!(texts, ["aaaa", "aaaa", "bcbc", "bcbc"]);
    assert_eq!(
        (
            &body["usage"]["prompt_tokens"],
            &body["usage"]["completion_tokens"]
        ),
        (&json!(3), &json!(16))
    );
    let events = served
        .complete(&format!("{fields},\"stream\":true"))
        .await
        .events();
    let streamed: Vec<_> = join(&events, 4)
        .into_iter()
        .map(|(text, _, _)| text)
        .collect();
    assert_eq!(streamed, texts);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_string_is_cut_and_never_shown_in_part() {
    let served = says("aENDb").await;
    let fields = r#""max_tokens":5,"stop":["END"]"#;
    let choice = served.complete(fields).await.ok()["choices"][0].take();
    assert_eq!(
        (
            &choice["text"],
            &choice["finish_reason"],
            &choice["stop_reason"]
        ),
        (&json!("a"), &json!("stop"), &json!("END"))
    );
    let events = served
        .complete(&format!("{fields},\"stream\":true"))
        .await
        .events();
    assert_eq!(
        join(&events, 1),
        [("a".to_owned(), json!("stop"), json!("END"))]
    );
    assert!(
        events
            .iter()
            .all(|event| !event["choices"][0]["text"].as_str().unwrap().contains('E'))
    );
    let kept = format!("{fields},\"include_stop_str_in_output\":true");
    assert_eq!(
        served.complete(&kept).await.ok()["choices"][0]["text"],
        "aEND"
    );

    let served = says("xEN").await;
    let events = served
        .complete(r#""max_tokens":3,"stop":"END","stream":true"#)
        .await
        .events();
    assert_eq!(
        join(&events, 1),
        [("xEN".to_owned(), json!("length"), Value::Null)]
    );
    served.idle().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn end_tokens_and_stop_ids_end_a_choice() {
    let served = scripted(|_| Script::of([97, 98, 256, 99])).await;
    let choice = served
        .complete(r#""max_tokens":4,"return_token_ids":true"#)
        .await
        .ok()["choices"][0]
        .take();
    assert_eq!(
        (
            &choice["text"],
            &choice["finish_reason"],
            &choice["stop_reason"]
        ),
        (&json!("ab"), &json!("stop"), &Value::Null)
    );
    assert_eq!(
        (&choice["token_ids"], &choice["prompt_token_ids"]),
        (&json!([97, 98, 256]), &json!([97]))
    );
    let choice = served
        .complete(r#""max_tokens":4,"stop_token_ids":[98]"#)
        .await
        .ok()["choices"][0]
        .take();
    assert_eq!(
        (&choice["text"], &choice["stop_reason"]),
        (&json!("a"), &json!(98))
    );
    let choice = served
        .complete(r#""max_tokens":4,"ignore_eos":true,"skip_special_tokens":false"#)
        .await
        .ok()["choices"][0]
        .take();
    assert_eq!(
        (&choice["text"], &choice["finish_reason"]),
        (&json!("ab<|im_end|>c"), &json!("length"))
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn half_a_character_is_never_shown() {
    let served = says("€").await;
    let fields = r#""max_tokens":3,"logprobs":true,"stream":true"#;
    let events = served.chat(fields).await.events();
    assert_eq!(join(&events, 1)[0].0, "€");
    let bytes: Vec<u64> = events
        .iter()
        .filter_map(|event| event["choices"][0]["logprobs"]["content"].as_array())
        .flatten()
        .flat_map(|token| {
            token["bytes"]
                .as_array()
                .unwrap()
                .iter()
                .map(|byte| byte.as_u64().unwrap())
        })
        .collect();
    assert_eq!(bytes, [0xE2, 0x82, 0xAC]);
    assert!(events.iter().all(|event| {
        !event["choices"][0]["delta"]["content"]
            .to_string()
            .contains('\u{FFFD}')
    }));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_chat_stream_begins_with_the_role_and_ends_with_usage() {
    let served = says("hello").await;
    let fields = r#""max_tokens":5,"stream":true,"stream_options":{"include_usage":true}"#;
    let events = served.chat(fields).await.events();
    assert_eq!(events[0]["object"], "chat.completion.chunk");
    assert_eq!(
        events[0]["choices"][0]["delta"],
        json!({"role": "assistant", "content": ""})
    );
    let (last, before) = events.split_last().unwrap();
    assert_eq!(
        (&last["choices"], &last["usage"]["total_tokens"]),
        (&json!([]), &json!(5 + "user:a".len() + 2))
    );
    assert!(
        before
            .iter()
            .all(|event| event["usage"].is_null() && event.get("usage").is_some())
    );
    let whole = served.chat(r#""max_tokens":5"#).await.ok();
    assert_eq!(
        join(before, 1)[0].0,
        whole["choices"][0]["message"]["content"]
    );

    let fields = r#""max_tokens":5,"stream":true,"stream_options":{"include_usage":true,"continuous_usage_stats":true}"#;
    let events = served.chat(fields).await.events();
    let spent: Vec<u64> = events
        .iter()
        .map(|event| event["usage"]["completion_tokens"].as_u64().unwrap())
        .collect();
    assert!(spent.is_sorted() && spent.last() == Some(&5), "{spent:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn values_without_a_number_print_as_the_lowest() {
    let served = scripted(|_| Script {
        logprobs: vec![f32::NAN, f32::NEG_INFINITY, -20000.0, f32::INFINITY],
        ..Script::of([97, 98, 99, 100])
    })
    .await;
    let body = served.complete(r#""max_tokens":4,"logprobs":0"#).await.ok();
    let logprobs = &body["choices"][0]["logprobs"];
    assert_eq!(
        logprobs["token_logprobs"],
        json!([-9999.0, -9999.0, -9999.0, -9999.0])
    );
    assert_eq!(
        (&logprobs["tokens"], &logprobs["text_offset"]),
        (&json!(["a", "b", "c", "d"]), &json!([0, 1, 2, 3]))
    );
    assert_eq!(logprobs["top_logprobs"][0].as_object().unwrap().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn echo_scores_the_prompt_and_nothing_need_be_generated() {
    let served = echoing().await;
    let fields = r#""prompt":"abc","max_tokens":0,"echo":true,"logprobs":1"#;
    for answer in [
        served.complete(fields).await.ok(),
        served
            .complete(&format!("{fields},\"add_special_tokens\":false"))
            .await
            .ok(),
    ] {
        let choice = &answer["choices"][0];
        assert_eq!(
            (&choice["text"], &choice["finish_reason"]),
            (&json!("abc"), &json!("length"))
        );
        let values = choice["logprobs"]["token_logprobs"].as_array().unwrap();
        assert!(values.len() == 3 && values[0].is_null() && values[1].is_number());
        assert_eq!(answer["usage"]["completion_tokens"], 0);
    }
    let events = served
        .complete(r#""prompt":"abc","max_tokens":2,"echo":true,"stream":true"#)
        .await
        .events();
    assert_eq!(events[0]["choices"][0]["text"], "abc");
    assert_eq!(join(&events, 1)[0].0, "abcab");
    let body = served
        .complete(r#""prompt":"abc","prompt_logprobs":1"#)
        .await
        .ok();
    let scores = body["choices"][0]["prompt_logprobs"].as_array().unwrap();
    assert!(scores.len() == 3 && scores[0].is_null() && scores[1].get("98").is_some());
}

#[tokio::test(flavor = "multi_thread")]
async fn one_failed_choice_among_others_and_all_failed() {
    let failing = |text: &'static str| Script {
        finish: Finish::Corrupted,
        ..Script::of(bytes_of(text))
    };
    let served = scripted(move |request| {
        if request.prompt_ids == bytes_of("bad") {
            failing("x")
        } else {
            Script::of(bytes_of("fine"))
        }
    })
    .await;
    let fields = r#""prompt":["bad","ok"],"max_tokens":4"#;
    let body = served.complete(fields).await.ok();
    assert_eq!(
        (
            &body["choices"][0]["finish_reason"],
            &body["choices"][1]["text"]
        ),
        (&json!("error"), &json!("fine"))
    );
    assert_eq!(body["choices"][0]["error"]["code"], "nonfinite_logits");
    let events = served
        .complete(&format!("{fields},\"stream\":true"))
        .await
        .events();
    assert_eq!(
        join(&events, 2)[1],
        ("fine".to_owned(), json!("length"), Value::Null)
    );
    served
        .complete(r#""prompt":"bad","max_tokens":4"#)
        .await
        .error(500, "nonfinite_logits");
    let events = served
        .complete(r#""prompt":"bad","max_tokens":4,"stream":true"#)
        .await
        .events();
    assert_eq!(events.last().unwrap()["error"]["code"], "nonfinite_logits");
    served.idle().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn silence_is_broken_by_comments() {
    let slow = MockConfig {
        step_delay: Duration::from_millis(100),
        ..engine(|_| Script {
            delay_steps: 5,
            ..Script::of([97])
        })
    };
    let served = start(Wishes {
        engine: Some(slow),
        keep_alive: Duration::from_millis(50),
        ..Wishes::default()
    })
    .await;
    let answer = served.complete(r#""max_tokens":1,"stream":true"#).await;
    assert!(
        answer.body.starts_with(": keep-alive\n\n"),
        "{}",
        answer.body
    );
    assert_eq!(join(&answer.events(), 1)[0].0, "a");
}

#[tokio::test(flavor = "multi_thread")]
async fn timings_are_told_on_request() {
    let served = says("hello").await;
    let timings = served
        .complete(r#""max_tokens":5,"include_timings":true"#)
        .await
        .ok()["timings"]
        .take();
    assert_eq!(
        (&timings["completion_tokens"], &timings["prompt_tokens"]),
        (&json!(5), &json!(1))
    );
    let names = [
        "queue_ms",
        "prefill_ms",
        "decode_ms",
        "total_ms",
        "ttft_ms",
        "time_per_output_token_ms",
    ];
    assert!(
        names
            .iter()
            .all(|name| timings[name].as_f64().is_some_and(|ms| ms >= 0.0)),
        "{timings}"
    );
}
