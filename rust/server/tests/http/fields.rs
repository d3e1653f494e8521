//! What each field of a request is allowed to be, over real sockets (http-surface.md sections 2 and 8).

use crate::served::{IM_END, NUM_IDS, echoing, exchange, request_text, scripted};
use mock_engine::Script;

#[tokio::test(flavor = "multi_thread")]
async fn unknown_fields_are_refused_or_reported() {
    let served = echoing().await;
    let error = served
        .complete(r#""temprature":1"#)
        .await
        .error(400, "unknown_parameter");
    assert_eq!(error["param"], "temprature");
    assert!(error["message"].as_str().unwrap().contains("'temperature'"));

    let report = |body: &str| {
        let headers = [
            "Content-Type: application/json",
            "Proa-Unknown-Fields: report",
        ];
        request_text("POST", "/v1/completions", &headers, body)
    };
    let answer = exchange(served.address, &report(r#"{"prompt":"a","temprature":1}"#)).await;
    assert_eq!(
        answer.ok()["ignored_fields"],
        serde_json::json!(["temprature"])
    );
    assert_eq!(answer.header("proa-ignored-fields"), Some("temprature"));

    let body = r#"{"prompt":"a","temprature":1,"stream":true,"max_tokens":3}"#;
    let events = exchange(served.address, &report(body)).await.events();
    assert_eq!(events[0]["ignored_fields"][0], "temprature");
    assert!(
        events[1..]
            .iter()
            .all(|event| event.get("ignored_fields").is_none())
    );

    let answer = exchange(
        served.address,
        &report(r#"{"prompt":"a","guided_json":{}}"#),
    )
    .await;
    let error = answer.error(400, "unknown_parameter");
    assert!(
        error["message"]
            .as_str()
            .unwrap()
            .contains("structured_outputs.json")
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn inert_null_and_refused_fields() {
    let served = echoing().await;
    let answer = served
        .complete(r#""prompt_cache_key":"x","foo":null"#)
        .await;
    answer.ok();
    assert_eq!(answer.header("proa-inert-fields"), Some("prompt_cache_key"));
    assert_eq!(answer.header("proa-ignored-fields"), Some("foo"));
    let error = served
        .complete(r#""suffix":"x""#)
        .await
        .error(400, "not_supported");
    assert_eq!(error["param"], "suffix");
    served.complete(r#""suffix":"""#).await.ok();
}

#[tokio::test(flavor = "multi_thread")]
async fn every_bad_value_is_named() {
    let served = echoing().await;
    for (fields, code, param) in [
        (r#""n":0"#, "integer_below_min_value", "n"),
        (r#""n":129"#, "integer_above_max_value", "n"),
        (r#""n":"2""#, "invalid_type", "n"),
        (r#""n":true"#, "invalid_type", "n"),
        (r#""n":1.5"#, "invalid_type", "n"),
        (
            r#""temperature":2.0001"#,
            "decimal_above_max_value",
            "temperature",
        ),
        (
            r#""temperature":1e400"#,
            "decimal_above_max_value",
            "temperature",
        ),
        (
            r#""temperature":-0.1"#,
            "decimal_below_min_value",
            "temperature",
        ),
        (r#""top_p":1.1"#, "decimal_above_max_value", "top_p"),
        (r#""top_k":-2"#, "integer_below_min_value", "top_k"),
        (
            r#""seed":9223372036854775808"#,
            "integer_above_max_value",
            "seed",
        ),
        (
            r#""stop":["1","2","3","4","5","6","7","8","9","a","b","c","d","e","f","g","h"]"#,
            "array_above_max_length",
            "stop",
        ),
        (r#""stop":[""]"#, "string_below_min_length", "stop[0]"),
        (
            r#""stop_token_ids":[258]"#,
            "token_id_out_of_range",
            "stop_token_ids[0]",
        ),
        (
            r#""stop_token_ids":[-1]"#,
            "token_id_out_of_range",
            "stop_token_ids[0]",
        ),
        (
            r#""logit_bias":{"5":101}"#,
            "decimal_above_max_value",
            "logit_bias.5",
        ),
        (r#""logit_bias":{"x":1}"#, "invalid_value", "logit_bias.x"),
        (
            r#""logit_bias":{"258":1}"#,
            "token_id_out_of_range",
            "logit_bias.258",
        ),
        (
            r#""allowed_token_ids":[]"#,
            "array_below_min_length",
            "allowed_token_ids",
        ),
        (
            r#""min_tokens":5,"max_tokens":4"#,
            "incompatible_parameters",
            "min_tokens",
        ),
        (r#""max_tokens":0"#, "incompatible_parameters", "max_tokens"),
        (r#""prompt":"""#, "empty_prompt", "prompt"),
        (r#""prompt":[]"#, "array_below_min_length", "prompt"),
        (r#""prompt":["a",[1]]"#, "invalid_type", "prompt[1]"),
        (r#""prompt":null"#, "missing_required_parameter", "prompt"),
        (r#""prompt":[258]"#, "token_id_out_of_range", "prompt[0]"),
        (r#""logprobs":21"#, "integer_above_max_value", "logprobs"),
        (r#""priority":1"#, "not_supported", "priority"),
        (
            r#""prompt_logprobs":1,"stream":true"#,
            "incompatible_parameters",
            "prompt_logprobs",
        ),
        (
            r#""stream_options":{"include_usage":true}"#,
            "incompatible_parameters",
            "stream_options",
        ),
        (
            r#""return_tokens_as_token_ids":true"#,
            "incompatible_parameters",
            "return_tokens_as_token_ids",
        ),
        (
            r#""cache_salt":"""#,
            "string_below_min_length",
            "cache_salt",
        ),
        (
            r#""deadline_ms":0"#,
            "integer_below_min_value",
            "deadline_ms",
        ),
        (r#""request_id":"a b""#, "invalid_value", "request_id"),
        (
            r#""n":128,"prompt":["1","2","3","4","5","6","7","8","9"]"#,
            "integer_above_max_value",
            "n",
        ),
    ] {
        let error = served.complete(fields).await.error(400, code);
        assert_eq!(error["param"], param, "{fields}: {error}");
    }
    let error = served
        .complete(r#""n":129"#)
        .await
        .error(400, "integer_above_max_value");
    assert_eq!(
        (&error["limit"], &error["value"], &error["flag"]),
        (&128.into(), &129.into(), &"--max-n".into())
    );
    let error = served
        .complete(r#""stop_token_ids":[258]"#)
        .await
        .error(400, "token_id_out_of_range");
    assert_eq!(error["limit"], NUM_IDS - 1);
    let error = served
        .complete(r#""priority":1"#)
        .await
        .error(400, "not_supported");
    assert!(
        error["message"]
            .as_str()
            .unwrap()
            .contains("--scheduling-policy")
    );
    let many: Vec<String> = (0..1025).map(|id| format!("\"{id}\":1")).collect();
    let fields = format!("\"logit_bias\":{{{}}}", many.join(","));
    served
        .complete(&fields)
        .await
        .error(400, "object_above_max_entries");
}

/// Fields whose values are numbers, on both generation routes.
const NUMERIC: &[&str] = &[
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "seed",
    "n",
    "min_tokens",
    "max_tokens",
    "prompt_logprobs",
    "priority",
    "deadline_ms",
];

#[tokio::test(flavor = "multi_thread")]
async fn no_number_breaks_a_numeric_field() {
    let served = echoing().await;
    for field in NUMERIC {
        for value in [
            "1e400",
            "-1e400",
            "9223372036854775808",
            "-9223372036854775809",
            "1e30",
            "-1e30",
            "\"1\"",
            "true",
            "[]",
            "{}",
        ] {
            let fields = format!("\"{field}\":{value}");
            for answer in [served.complete(&fields).await, served.chat(&fields).await] {
                assert_eq!(answer.status, 400, "{fields}: {}", answer.body);
                let code = answer.json()["error"]["code"].clone();
                let range = code
                    .as_str()
                    .is_some_and(|code| code.ends_with("min_value") || code.ends_with("max_value"));
                assert!(range || code == "invalid_type", "{fields}: {code}");
            }
        }
        let null = format!("\"{field}\":null,\"stop\":\"zz\"");
        served.complete(&null).await.ok();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn values_at_the_edges_are_accepted() {
    let served = echoing().await;
    for fields in [
        r#""n":2.0"#,
        r#""n":128,"max_tokens":1"#,
        r#""temperature":2"#,
        r#""top_p":0"#,
        r#""top_k":1000000000"#,
        r#""top_k":-1"#,
        r#""seed":-9223372036854775808"#,
        r#""priority":0"#,
        r#""allowed_token_ids":[97]"#,
        r#""bad_words":["b c"]"#,
        r#""logit_bias":{"5":-100}"#,
        r#""cache_salt":"s","user":"","metadata":{"k":"v"}"#,
        r#""prompt":[97,98],"logprobs":20"#,
    ] {
        let answer = served.complete(fields).await;
        assert_eq!(answer.status, 200, "{fields}: {}", answer.body);
    }
    let choices = served.complete(r#""n":2.0"#).await.ok()["choices"].take();
    assert_eq!(choices.as_array().unwrap().len(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn chat_fields() {
    let served = echoing().await;
    for (fields, code, param) in [
        (
            r#""top_logprobs":2"#,
            "incompatible_parameters",
            "top_logprobs",
        ),
        (
            r#""max_tokens":3,"max_completion_tokens":4"#,
            "incompatible_parameters",
            "max_tokens",
        ),
        (r#""max_tokens":0"#, "integer_below_min_value", "max_tokens"),
        (
            r#""chat_template_kwargs":{"messages":[]}"#,
            "invalid_value",
            "chat_template_kwargs.messages",
        ),
        (
            r#""chat_template_kwargs":{"mod":1}"#,
            "unknown_parameter",
            "chat_template_kwargs.mod",
        ),
        (
            r#""add_generation_prompt":true,"continue_final_message":true"#,
            "incompatible_parameters",
            "continue_final_message",
        ),
        (r#""functions":[{}]"#, "not_supported", "functions"),
    ] {
        let error = served.chat(fields).await.error(400, code);
        assert_eq!(error["param"], param, "{fields}: {error}");
    }
    for (messages, code, param) in [
        ("[]", "array_below_min_length", "messages"),
        (
            r#"[{"role":"user"}]"#,
            "missing_required_parameter",
            "messages[0].content",
        ),
        (
            r#"[{"content":"a"}]"#,
            "missing_required_parameter",
            "messages[0].role",
        ),
        (
            r#"[{"role":"king","content":"a"}]"#,
            "invalid_value",
            "messages[0].role",
        ),
        (
            r#"[{"role":"user","content":"a","foo":1}]"#,
            "unknown_parameter",
            "messages[0].foo",
        ),
        (
            r#"[{"role":"function","content":"a"}]"#,
            "not_supported",
            "messages[0].role",
        ),
    ] {
        let answer = served
            .post(
                "/v1/chat/completions",
                &format!(r#"{{"messages":{messages}}}"#),
            )
            .await;
        let error = answer.error(400, code);
        assert_eq!(error["param"], param, "{messages}: {error}");
    }
    served
        .post("/v1/chat/completions", "{}")
        .await
        .error(400, "missing_required_parameter");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_prompt_and_the_output_share_the_context() {
    let served = echoing().await;
    let ids = vec!["97"; 2040].join(",");
    let fields = |max_tokens: u32| format!(r#""prompt":[{ids}],"max_tokens":{max_tokens}"#);
    let error = served
        .complete(&fields(9))
        .await
        .error(400, "context_length_exceeded");
    let message = error["message"].as_str().unwrap();
    assert!(
        ["2048", "2040", "9", "2049"]
            .iter()
            .all(|number| message.contains(number)),
        "{message}"
    );
    served.complete(&fields(8)).await.ok();
}

#[tokio::test(flavor = "multi_thread")]
async fn model_names() {
    let served = echoing().await;
    let error = served
        .complete(r#""model":"x""#)
        .await
        .error(404, "model_not_found");
    assert!(error["message"].as_str().unwrap().contains('m'));
    assert_eq!(served.complete("").await.ok()["model"], "m");
    assert_eq!(
        served.complete(r#""model":"alias/of-m""#).await.ok()["model"],
        "alias/of-m"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn request_ids() {
    let served = echoing().await;
    let with = |body: &str| {
        let headers = ["Content-Type: application/json", "X-Request-Id: r1"];
        request_text("POST", "/v1/completions", &headers, body)
    };
    let answer = exchange(served.address, &with(r#"{"prompt":"a"}"#)).await;
    assert_eq!(
        (answer.header("x-request-id"), &answer.ok()["id"]),
        (Some("r1"), &"cmpl-r1".into())
    );
    let answer = exchange(served.address, &with(r#"{"prompt":"a","request_id":"r2"}"#)).await;
    assert_eq!(
        (answer.header("x-request-id"), &answer.ok()["id"]),
        (Some("r2"), &"cmpl-r2".into())
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn tokenize_and_detokenize() {
    let served = echoing().await;
    let body = served
        .post("/tokenize", r#"{"prompt":"ab","return_token_strs":true}"#)
        .await
        .ok();
    assert_eq!(
        body,
        serde_json::json!({"count": 2, "max_model_len": 2048, "token_strs": ["a", "b"], "tokens": [97, 98]})
    );
    let messages = r#"{"messages":[{"role":"user","content":"a"}]}"#;
    let ids = served.post("/tokenize", messages).await.ok()["tokens"].take();
    let text = served
        .post("/detokenize", &format!(r#"{{"tokens":{ids}}}"#))
        .await
        .ok();
    assert_eq!(text["prompt"], "user:a<|im_end|>>");
    let text = served
        .post(
            "/detokenize",
            &format!(r#"{{"tokens":[97,{IM_END}],"skip_special_tokens":true}}"#),
        )
        .await;
    assert_eq!(text.ok()["prompt"], "a");
    served
        .post("/tokenize", "{}")
        .await
        .error(400, "missing_required_parameter");
    let both = r#"{"prompt":"a","messages":[{"role":"user","content":"a"}]}"#;
    served
        .post("/tokenize", both)
        .await
        .error(400, "incompatible_parameters");
    served
        .post("/detokenize", r#"{"tokens":[258]}"#)
        .await
        .error(400, "token_id_out_of_range");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_engine_is_asked_for() {
    let seen = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
    let sink = std::sync::Arc::clone(&seen);
    let served = scripted(move |request| {
        sink.lock().unwrap().push(request.clone());
        Script::of([97])
    })
    .await;
    let fields = r#""max_tokens":7,"min_tokens":2,"stop_token_ids":[9],"logprobs":3,"logit_bias":{"5":-2.5},
        "allowed_token_ids":[97,98],"cache_salt":"s","bad_words":["xy"]"#;
    served.complete(fields).await.ok();
    served.complete(r#""ignore_eos":true"#).await.ok();
    let seen = seen.lock().unwrap();
    let first = &seen[0];
    assert_eq!(
        (
            first.max_tokens,
            first.min_tokens,
            first.num_logprobs,
            first.num_prompt_logprobs
        ),
        (7, 2, 3, -1)
    );
    assert_eq!(first.stop_ids, [9, IM_END]);
    let rare = first.rare.as_ref().unwrap();
    assert_eq!(rare.allowed_ids.as_deref(), Some([97, 98].as_slice()));
    assert_eq!(rare.salt.as_deref(), Some(b"s".as_slice()));
    assert_eq!(
        rare.logit_bias
            .as_ref()
            .map(|bias| (bias.ids.clone(), bias.values.clone())),
        Some((vec![5], vec![-2.5]))
    );
    assert!(rare.bad_words.as_ref().unwrap().0.contains(&vec![120, 121]));
    assert_eq!((seen[1].max_tokens, seen[1].stop_ids.len()), (16, 0));
}
