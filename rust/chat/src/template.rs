//! A model's chat template: compiled once, rendered for every conversation.
//!
//! Owns the environment templates run in (the one `transformers` gives them), its caps, and what a template was found
//! to want. Does not know tokens or requests.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use limits::{ApiError, ErrorKind as ApiKind};
use minijinja::syntax::SyntaxConfig;
use minijinja::{AutoEscape, Environment, Value};
use model_files::TemplateSource;
use serde_json::{Map, Value as Json};

use crate::error::{api_error, limit_exceeded};
use crate::message::template_value;
use crate::open_message::{cut_at_tag, open_last};
use crate::output::CappedOutput;
use crate::probe::{self, Wants};
use crate::source::{rewrite, variables_read_by_their_own_set};
use crate::values::{from_json, from_object};
use crate::{ContentFormat, Message, Role, TemplateError, functions};

/// Largest template that a model may bring along.
const MAX_MODEL_TEMPLATE_BYTES: usize = 4 << 20;
const NAME: &str = "chat";
/// Names a request may not set through `chat_template_kwargs`, beside special tokens.
const RESERVED: [&str; 7] = [
    "messages",
    "tools",
    "documents",
    "add_generation_prompt",
    "continue_final_message",
    "chat_template",
    "tokenize",
];

/// How a template is compiled and capped.
#[derive(Clone, Debug)]
pub struct TemplateOptions {
    /// The form of message contents; None = found out by trying.
    pub content_format: Option<ContentFormat>,
    /// Instructions of one run (`template_fuel`).
    pub fuel: u64,
    /// Time of one run (`template_timeout_s`).
    pub timeout: Duration,
    /// Bytes one run may write (`template_output_bytes`).
    pub max_output_bytes: usize,
    /// Largest source.
    pub max_source_bytes: usize,
}

impl Default for TemplateOptions {
    fn default() -> Self {
        TemplateOptions {
            content_format: None,
            fuel: limits::TEMPLATE_FUEL.value() as u64,
            timeout: Duration::from_secs(limits::TEMPLATE_TIMEOUT_S.value() as u64),
            max_output_bytes: limits::TEMPLATE_OUTPUT_BYTES.value() as usize,
            max_source_bytes: MAX_MODEL_TEMPLATE_BYTES,
        }
    }
}

/// One conversation to be rendered.
#[derive(Clone, Debug, Default)]
pub struct RenderRequest<'a> {
    /// The messages, at least one.
    pub messages: &'a [Message],
    /// The tool definitions as the client sent them; None or empty = none.
    pub tools: Option<&'a [Json]>,
    /// Further variables (`chat_template_kwargs`), checked with `check_kwargs`.
    pub kwargs: Option<&'a Map<String, Json>>,
    /// Write the beginning of the answer.
    pub add_generation_prompt: bool,
    /// Leave the last message open, so that the model continues it.
    pub continue_final_message: bool,
}

/// A compiled chat template. Rendering is read-only: one value serves all threads.
#[derive(Debug)]
pub struct ChatTemplate {
    main: Compiled,
    tool_use: Option<Compiled>,
    special_tokens: BTreeMap<String, String>,
    options: TemplateOptions,
    origin: &'static str,
    source: String,
}

#[derive(Debug)]
struct Compiled {
    env: Environment<'static>,
    variables: BTreeSet<String>,
    wants: Wants,
}

/// The error of a chat request to a model without a template; nothing stands in for one.
pub fn missing_template() -> ApiError {
    ApiError::not_supported(
        None,
        "The model has no chat template. Use /v1/completions, or start the server with --chat-template.",
    )
}

impl ChatTemplate {
    /// Compiles `source`; `special_tokens` are the model's by name (`bos_token`, ...).
    pub fn compile(
        source: &TemplateSource,
        special_tokens: &BTreeMap<String, String>,
        options: TemplateOptions,
    ) -> Result<Self, TemplateError> {
        let mut template = ChatTemplate {
            main: Compiled::new(&source.text, &options)?,
            tool_use: source
                .tool_use
                .as_deref()
                .map(|text| Compiled::new(text, &options))
                .transpose()?,
            special_tokens: special_tokens.clone(),
            options,
            origin: source.origin,
            source: source.text.clone(),
        };
        template.main.wants = probe::find(&source.text, |messages| {
            template.run(&template.main, messages, None)
        });
        if let (Some(tool_use), Some(text)) = (&template.tool_use, &source.tool_use) {
            let wants = probe::find(text, |messages| template.run(tool_use, messages, None));
            if let Some(tool_use) = &mut template.tool_use {
                tool_use.wants = wants;
            }
        }
        if let Some(format) = template.options.content_format {
            template.main.wants.format = format;
            if let Some(tool_use) = &mut template.tool_use {
                tool_use.wants.format = format;
            }
        }
        Ok(template)
    }

    /// Where the template stood (`tokenizer_config.json`, `gguf`, ...).
    pub fn origin(&self) -> &'static str {
        self.origin
    }

    /// The template's text.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// The variables a template reads from outside, sorted, special tokens and `messages` included.
    pub fn variables(&self) -> BTreeSet<&str> {
        let tool_use = self
            .tool_use
            .iter()
            .flat_map(|compiled| &compiled.variables);
        self.main
            .variables
            .iter()
            .chain(tool_use)
            .map(String::as_str)
            .collect()
    }

    /// Whether the template reads `variable` (`enable_thinking`, `reasoning_effort`, `tools`, ...).
    pub fn reads(&self, variable: &str) -> bool {
        self.variables().contains(variable)
    }

    /// Whether a message's `name` reaches the prompt.
    pub fn reads_name(&self) -> bool {
        self.main.wants.name
            || self
                .tool_use
                .as_ref()
                .is_some_and(|compiled| compiled.wants.name)
    }

    /// How the template wants contents.
    pub fn content_format(&self) -> ContentFormat {
        self.main.wants.format
    }

    /// Refuses keys of `chat_template_kwargs` that are reserved or that the template never reads.
    pub fn check_kwargs(&self, kwargs: &Map<String, Json>) -> Result<(), ApiError> {
        let readable = self.kwarg_names();
        for key in kwargs.keys() {
            let param = format!("chat_template_kwargs.{key}");
            if RESERVED.contains(&key.as_str()) || self.is_special_token(key) {
                return Err(ApiError::invalid_value(
                    &param,
                    "this name is set by the server",
                ));
            }
            if !readable.contains(key.as_str()) {
                let list = match readable.len() {
                    0 => "none".to_owned(),
                    _ => readable.iter().copied().collect::<Vec<_>>().join(", "),
                };
                return Err(ApiError::new(
                    ApiKind::UnknownField,
                    format!("Unknown parameter: '{param}'. The chat template never reads it; it reads: {list}."),
                )
                .with_param(param));
            }
        }
        Ok(())
    }

    /// The variables that `chat_template_kwargs` may set.
    pub fn kwarg_names(&self) -> BTreeSet<&str> {
        let mut names = self.variables();
        names.retain(|name| !RESERVED.contains(name) && !self.is_special_token(name));
        names
    }

    fn is_special_token(&self, name: &str) -> bool {
        self.special_tokens.contains_key(name) || name.ends_with("_token")
    }

    /// The prompt of a conversation. Costs time in proportion to it: call it on a text worker.
    pub fn render(&self, request: &RenderRequest<'_>) -> Result<String, ApiError> {
        let tools = request.tools.filter(|tools| !tools.is_empty());
        let compiled = match (&self.tool_use, tools) {
            (Some(tool_use), Some(_)) => tool_use,
            _ => &self.main,
        };
        let wants = &compiled.wants;
        let role = |role: Role| match role {
            Role::Developer if !wants.developer => Role::System,
            role => role,
        };
        let mut messages: Vec<Map<String, Json>> = request
            .messages
            .iter()
            .map(|message| template_value(message, role(message.role), wants.format))
            .collect();
        let open = match request.continue_final_message {
            true => Some(open_last(&mut messages)?),
            false => None,
        };
        let text = self.run(compiled, &messages, Some(request))?;
        match open {
            Some(last) => cut_at_tag(text, &last),
            None => Ok(text),
        }
    }

    /// Runs `compiled` over messages in template form; without a request as for a plain conversation.
    fn run(
        &self,
        compiled: &Compiled,
        messages: &[Map<String, Json>],
        request: Option<&RenderRequest<'_>>,
    ) -> Result<String, ApiError> {
        let mut context: BTreeMap<&str, Value> = BTreeMap::new();
        for (name, text) in &self.special_tokens {
            context.insert(name, Value::from(text.as_str()));
        }
        for (name, value) in request
            .and_then(|request| request.kwargs)
            .into_iter()
            .flatten()
        {
            context.insert(name, from_json(value));
        }
        let tools = request
            .and_then(|request| request.tools)
            .filter(|tools| !tools.is_empty());
        context.insert("messages", messages.iter().map(from_object).collect());
        context.insert(
            "tools",
            tools.map_or(Value::from(()), |tools| {
                tools.iter().map(from_json).collect()
            }),
        );
        context.insert("documents", Value::from(()));
        let generation = request.is_none_or(|request| request.add_generation_prompt);
        context.insert("add_generation_prompt", Value::from(generation));

        let mut output = CappedOutput::new(self.options.max_output_bytes, self.options.timeout);
        let template = compiled
            .env
            .get_template(NAME)
            .map_err(|error| api_error(&error))?;
        let result = template
            .render_captured_to(Value::from_pairs(context), &mut output)
            .map(|_| ());
        if output.is_full {
            return Err(limit_exceeded(
                "writes more than is allowed",
                "--template-output-bytes",
            ));
        }
        if output.is_late {
            return Err(limit_exceeded(
                "took longer than is allowed",
                "--template-timeout-s",
            ));
        }
        result.map_err(|error| api_error(&error))?;
        // Only whole strings are written.
        Ok(String::from_utf8(output.bytes).unwrap_or_default())
    }
}

impl Compiled {
    fn new(source: &str, options: &TemplateOptions) -> Result<Self, TemplateError> {
        if source.len() > options.max_source_bytes {
            return Err(TemplateError::TooLarge {
                bytes: source.len(),
                limit: options.max_source_bytes,
            });
        }
        let mut env = Environment::new();
        env.set_syntax(
            SyntaxConfig::builder()
                .trim_blocks(true)
                .lstrip_blocks(true)
                .build()
                .map_err(|error| TemplateError::syntax(&error))?,
        );
        env.set_auto_escape_callback(|_| AutoEscape::None);
        env.set_fuel(Some(options.fuel));
        env.set_recursion_limit(limits::MAX_TEMPLATE_RECURSION.value() as usize);
        functions::install(&mut env);
        let rewritten = rewrite(source);
        env.add_template_owned(NAME, rewritten)
            .map_err(|error| TemplateError::syntax(&error))?;
        let template = env
            .get_template(NAME)
            .map_err(|error| TemplateError::syntax(&error))?;
        let mut variables: BTreeSet<String> =
            template.undeclared_variables(false).into_iter().collect();
        variables.extend(variables_read_by_their_own_set(source));
        let globals: BTreeSet<String> = env.globals().map(|(name, _)| name.to_owned()).collect();
        variables.retain(|name| !globals.contains(name));
        Ok(Compiled {
            env,
            variables,
            wants: Wants::default(),
        })
    }
}
