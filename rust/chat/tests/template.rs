//! Caps, checks and conclusions of chat templates; their output is compared with transformers in tests/python/text.

use std::collections::BTreeMap;
use std::time::Duration;

use limits::{ApiError, ErrorKind};
use model_files::TemplateSource;
use proa_chat::{
    ChatTemplate, Content, ContentFormat, Message, RenderRequest, Role, TemplateError,
    TemplateOptions, ToolCall, missing_template,
};
use proptest::prelude::*;
use serde_json::{Value, json};

fn source(text: &str) -> TemplateSource {
    TemplateSource {
        text: text.to_owned(),
        tool_use: None,
        origin: "test",
    }
}

fn compile_with(text: &str, options: TemplateOptions) -> Result<ChatTemplate, TemplateError> {
    let special = BTreeMap::from([("bos_token".to_owned(), "<s>".to_owned())]);
    ChatTemplate::compile(&source(text), &special, options)
}

fn compile(text: &str) -> ChatTemplate {
    compile_with(text, TemplateOptions::default()).expect("a template that compiles")
}

fn render(template: &ChatTemplate, messages: &[Message]) -> Result<String, ApiError> {
    template.render(&RenderRequest {
        messages,
        ..RenderRequest::default()
    })
}

fn user(text: &str) -> [Message; 1] {
    [Message::text(Role::User, text)]
}

fn refused(text: &str, options: TemplateOptions) -> ApiError {
    let template = compile_with(text, options).expect("a template that compiles");
    render(&template, &user("x")).expect_err("a run beyond its caps")
}

#[test]
fn endless_work_ends_at_the_cap_of_instructions() {
    let endless = [
        "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
        "{% set ns = namespace(s='ab') %}{% for a in range(99999) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}",
        "{% set ns = namespace(s='ab') %}{% for a in range(99999) %}{% set ns.s = ns.s.replace('a', 'aaaa') %}{% endfor %}",
        "{{ 'x' * 999999999 }}",
        "{{ '%999999999d' % 1 }}",
    ];
    for text in endless {
        let options = TemplateOptions {
            fuel: 200_000,
            timeout: Duration::from_secs(60),
            ..TemplateOptions::default()
        };
        let error = refused(text, options);
        assert_eq!(
            (error.kind, error.code),
            (ErrorKind::Template, "template_limit_exceeded"),
            "{text}: {error:?}"
        );
    }
}

#[test]
fn output_and_time_are_capped() {
    let text = "{% for a in range(9999) %}{{ messages[0].content }}{% endfor %}";
    let small = TemplateOptions {
        max_output_bytes: 1000,
        ..TemplateOptions::default()
    };
    let error = refused(text, small);
    assert_eq!(
        (error.code, error.flag),
        ("template_limit_exceeded", Some("--template-output-bytes"))
    );
    let late = TemplateOptions {
        timeout: Duration::ZERO,
        ..TemplateOptions::default()
    };
    let error = refused(text, late);
    assert_eq!(
        (error.code, error.flag),
        ("template_limit_exceeded", Some("--template-timeout-s"))
    );
}

#[test]
fn recursion_ends_in_an_error() {
    let error = refused(
        "{% macro f(x) %}{{ f(x) }}{% endmacro %}{{ f(1) }}",
        TemplateOptions::default(),
    );
    assert_eq!(error.kind, ErrorKind::Template);
    let deep = format!("{{{{ {}1{} }}}}", "[".repeat(5000), "]".repeat(5000));
    assert!(matches!(
        compile_with(&deep, TemplateOptions::default()),
        Err(TemplateError::Syntax(_))
    ));
    let large = TemplateOptions {
        max_source_bytes: 10,
        ..TemplateOptions::default()
    };
    assert!(matches!(
        compile_with("{{ 1 }} and more", large),
        Err(TemplateError::TooLarge { .. })
    ));
}

#[test]
fn a_raised_message_reaches_the_client_in_its_own_words() {
    let error = refused(
        "{{ raise_exception('System role not supported') }}",
        TemplateOptions::default(),
    );
    assert_eq!(
        (error.kind, error.code),
        (ErrorKind::Template, "template_error")
    );
    assert_eq!(error.message, "System role not supported");
    let macros = "{% macro f() %}{{ raise_exception('inside') }}{% endmacro %}{{ f() }}";
    assert_eq!(
        refused(macros, TemplateOptions::default()).message,
        "inside"
    );
    let long = format!("{{{{ raise_exception('{}') }}}}", "é".repeat(2000));
    assert_eq!(
        refused(&long, TemplateOptions::default())
            .message
            .chars()
            .count(),
        512
    );
    let broken = refused(
        "a\n{{ messages[0].content.nothing() }}",
        TemplateOptions::default(),
    );
    assert!(
        broken.message.contains("failed") && broken.message.contains("line 2"),
        "{}",
        broken.message
    );
    assert!(
        compile_with("{% if %}", TemplateOptions::default())
            .unwrap_err()
            .to_string()
            .contains("line 1")
    );
}

#[test]
fn arguments_of_a_request_are_checked_against_what_the_template_reads() {
    let template = compile(
        "{% set date = date | default('today') %}{% for m in messages %}{{ bos_token }}{{ m.content }}{% endfor %}\
         {% if enable_thinking is defined %}t{% endif %}{% for x in namespace(a=1).a | default([]) %}{% endfor %}",
    );
    let names: Vec<_> = template.kwarg_names().into_iter().collect();
    assert_eq!(names, ["date", "enable_thinking"]);
    assert!(template.reads("enable_thinking") && !template.reads("verbosity"));
    let check = |value: Value| template.check_kwargs(value.as_object().expect("an object"));
    assert!(check(json!({"enable_thinking": false, "date": "x"})).is_ok());
    let error = check(json!({"enable_thinkin": false})).unwrap_err();
    assert_eq!(error.kind, ErrorKind::UnknownField);
    assert_eq!(
        error.param.as_deref(),
        Some("chat_template_kwargs.enable_thinkin")
    );
    assert!(
        error.message.contains("date, enable_thinking"),
        "{}",
        error.message
    );
    for reserved in [
        "messages",
        "tools",
        "bos_token",
        "add_generation_prompt",
        "eos_token",
        "tokenize",
    ] {
        assert_eq!(
            check(json!({reserved: []})).unwrap_err().kind,
            ErrorKind::InvalidValue
        );
    }
}

#[test]
fn developer_becomes_system_where_there_is_no_such_role() {
    let messages = [Message::text(Role::Developer, "d")];
    assert_eq!(
        render(&compile("{{ messages[0].role }}"), &messages).unwrap(),
        "system"
    );
    let knows =
        compile("{% if messages[0].role == 'developer' %}D{% endif %}{{ messages[0].role }}");
    assert_eq!(render(&knows, &messages).unwrap(), "Ddeveloper");
}

#[test]
fn contents_take_the_form_that_the_template_wants() {
    let parts = Message {
        content: Some(Content::Parts(vec!["a".to_owned(), "b".to_owned()])),
        ..Message::text(Role::User, "")
    };
    let strings = compile("{% for m in messages %}{{ '<' + m.content + '>' }}{% endfor %}");
    assert_eq!(strings.content_format(), ContentFormat::String);
    assert_eq!(
        render(&strings, std::slice::from_ref(&parts)).unwrap(),
        "<a\nb>"
    );
    let dumps = compile("{% for m in messages %}{{ m.content }}{% endfor %}");
    assert_eq!(dumps.content_format(), ContentFormat::String);
    let lists = compile(
        "{% for m in messages %}{% for p in m.content %}[{{ p['text'] }}]{% endfor %}{% endfor %}",
    );
    assert_eq!(lists.content_format(), ContentFormat::Parts);
    assert_eq!(render(&lists, &user("x")).unwrap(), "[x]");
    assert_eq!(
        render(&lists, std::slice::from_ref(&parts)).unwrap(),
        "[a][b]"
    );
    let both = compile(
        "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}{% for p in m.content %}\
         [{{ p.text }}]{% endfor %}{% endif %}{% endfor %}",
    );
    assert_eq!(both.content_format(), ContentFormat::Either);
    assert_eq!(render(&both, &user("x")).unwrap(), "x");
    assert_eq!(render(&both, &[parts]).unwrap(), "[a][b]");
    let forced = TemplateOptions {
        content_format: Some(ContentFormat::Parts),
        ..TemplateOptions::default()
    };
    assert_eq!(
        compile_with("{{ messages }}", forced)
            .unwrap()
            .content_format(),
        ContentFormat::Parts
    );
}

#[test]
fn names_and_calls_reach_the_template() {
    let silent = compile("{% for m in messages %}{{ m.content }}{% endfor %}");
    let speaks = compile("{% for m in messages %}{{ m.name }}: {{ m.content }}{% endfor %}");
    assert!(!silent.reads_name() && speaks.reads_name());
    let call = |arguments: &str| Message {
        content: None,
        tool_calls: vec![ToolCall {
            id: "i".into(),
            name: "f".into(),
            arguments: arguments.into(),
        }],
        ..Message::text(Role::Assistant, "")
    };
    let template = compile(
        "{% set f = messages[0].tool_calls[0].function %}{{ f.arguments is mapping }} {{ f.arguments | tojson }} \
         {{ messages[0].content is defined }}",
    );
    assert_eq!(
        render(&template, &[call(r#"{"b": 1, "a": 2.0}"#)]).unwrap(),
        r#"True {"b": 1, "a": 2.0} False"#
    );
    assert_eq!(
        render(&template, &[call("no json")]).unwrap(),
        r#"False "no json" False"#
    );
    assert_eq!(
        render(&template, &[call("[1]")]).unwrap(),
        r#"False "[1]" False"#
    );
}

#[test]
fn a_separate_template_serves_requests_with_tools() {
    let source = TemplateSource {
        text: "plain {{ tools is none }}".to_owned(),
        tool_use: Some("tools {{ tools | length }}".to_owned()),
        origin: "test",
    };
    let template =
        ChatTemplate::compile(&source, &BTreeMap::new(), TemplateOptions::default()).unwrap();
    let messages = user("x");
    let with = |tools: &[Value]| {
        template.render(&RenderRequest {
            messages: &messages,
            tools: Some(tools),
            ..RenderRequest::default()
        })
    };
    assert_eq!(with(&[json!({})]).unwrap(), "tools 1");
    assert_eq!(with(&[]).unwrap(), "plain True");
}

#[test]
fn a_message_that_the_template_drops_cannot_be_continued() {
    let template =
        compile("{% for m in messages if m.role == 'user' %}{{ m.content }}{% endfor %}");
    let messages = [
        Message::text(Role::User, "q"),
        Message::text(Role::Assistant, "a"),
    ];
    let request = RenderRequest {
        messages: &messages,
        continue_final_message: true,
        ..RenderRequest::default()
    };
    let error = template.render(&request).unwrap_err();
    assert_eq!(
        (error.kind, error.param.as_deref()),
        (ErrorKind::Template, Some("continue_final_message"))
    );
}

#[test]
fn a_model_without_a_template_says_so() {
    let error = missing_template();
    assert_eq!(
        (error.kind, error.code),
        (ErrorKind::NotSupported, "not_supported")
    );
    assert!(error.message.contains("no chat template"));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]
    #[test]
    fn damaged_templates_never_panic(
        at in any::<prop::sample::Index>(), len in 0usize..6, new in "[{}%|()\\[\\]'\"a-z =.~+-]{0,6}"
    ) {
        let good = include_str!("../../../tests/fixtures/templates/qwen25_tools.jinja");
        let at = at.index(good.len());
        let (from, to) = (floor(good, at), floor(good, (at + len).min(good.len())));
        let text = format!("{}{new}{}", &good[..from], &good[to..]);
        if let Ok(template) = compile_with(&text, TemplateOptions { fuel: 100_000, ..TemplateOptions::default() }) {
            let _ = render(&template, &user("x"));
        }
    }
}

fn floor(text: &str, mut at: usize) -> usize {
    while !text.is_char_boundary(at) {
        at -= 1;
    }
    at
}
