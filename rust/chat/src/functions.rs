//! What templates can call beyond Jinja's own functions and filters.
//!
//! Owns `raise_exception`, `strftime_now`, Python's `tojson`, `str` and `%`. Does not know messages.

use std::fmt;

use minijinja::value::{Kwargs, Rest, Value, ValueKind};
use minijinja::{Environment, Error, ErrorKind, Output, State};

use crate::clock::strftime_now;
use crate::python_text::{JsonStyle, write_json, write_str};
use crate::string_methods;

/// Widest indentation of `tojson` that is honoured; more is an error.
const MAX_INDENT: i64 = 64;

/// What a template itself raised, kept in the error's chain so that it can be told from a template's failure.
#[derive(Debug)]
pub(crate) struct Raised(pub(crate) String);

impl fmt::Display for Raised {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Raised {}

/// Adds everything of this module to `env`.
pub(crate) fn install(env: &mut Environment<'static>) {
    env.add_function("raise_exception", raise_exception);
    env.add_function("strftime_now", strftime_now);
    env.add_filter("tojson", tojson);
    env.add_filter("string", python_str);
    env.add_filter("trim", string_methods::trim);
    env.add_function("percent_args", percent_args);
    env.set_formatter(format_value);
    env.set_unknown_method_callback(call_method);
}

fn raise_exception(message: String) -> Result<Value, Error> {
    Err(Error::new(ErrorKind::InvalidOperation, message.clone()).with_source(Raised(message)))
}

fn format_value(out: &mut Output, _: &mut State, value: &Value) -> Result<(), Error> {
    if let Some(text) = value.as_str() {
        return out.write_str(text).map_err(Error::from);
    }
    let mut text = String::new();
    write_str(value, &mut text)?;
    out.write_str(&text).map_err(Error::from)
}

fn python_str(value: &Value) -> Result<Value, Error> {
    if value.kind() == ValueKind::String {
        return Ok(value.clone());
    }
    let mut text = String::new();
    write_str(value, &mut text)?;
    Ok(Value::from(text))
}

/// `json.dumps` with the arguments that `transformers` passes on: `ensure_ascii`, `indent`, `separators`, `sort_keys`.
fn tojson(value: &Value, positional: Rest<Value>, kwargs: Kwargs) -> Result<String, Error> {
    if positional.len() > 4 {
        return Err(Error::from(ErrorKind::TooManyArguments));
    }
    let argument = |index: usize, name: &str| -> Result<Option<Value>, Error> {
        match positional.get(index) {
            Some(value) => Ok(Some(value.clone())),
            None => kwargs.get::<Option<Value>>(name),
        }
    };
    let flag = |value: Option<Value>| value.is_some_and(|value| value.is_true());
    let ensure_ascii = flag(argument(0, "ensure_ascii")?);
    let indent = match argument(1, "indent")?.filter(|value| !value.is_none()) {
        None => None,
        Some(value) => Some(indent_text(&value)?),
    };
    let separators = argument(2, "separators")?.filter(|value| !value.is_none());
    let sort_keys = flag(argument(3, "sort_keys")?);
    kwargs.assert_all_used()?;
    let (item_separator, key_separator) = match separators {
        Some(pair) => {
            let wrong = || {
                Error::new(
                    ErrorKind::InvalidOperation,
                    "separators must be a pair of strings",
                )
            };
            let parts: Vec<Value> = pair.try_iter()?.collect();
            match parts.as_slice() {
                [item, key] => (
                    item.to_str().ok_or_else(wrong)?.to_string(),
                    key.to_str().ok_or_else(wrong)?.to_string(),
                ),
                _ => return Err(wrong()),
            }
        }
        None if indent.is_some() => (",".to_owned(), ": ".to_owned()),
        None => (", ".to_owned(), ": ".to_owned()),
    };
    let style = JsonStyle {
        ensure_ascii,
        indent,
        item_separator,
        key_separator,
        sort_keys,
    };
    let mut out = String::new();
    write_json(value, &style, &mut out, 0)?;
    Ok(out)
}

fn indent_text(value: &Value) -> Result<String, Error> {
    if let Some(text) = value.as_str() {
        return Ok(text.to_owned());
    }
    match value.as_i64() {
        Some(n) if n <= MAX_INDENT => Ok(" ".repeat(n.max(0) as usize)),
        _ => Err(Error::new(
            ErrorKind::InvalidOperation,
            format!("indent must be at most {MAX_INDENT}"),
        )),
    }
}

/// What Python's `%` puts into a string: the items of a tuple, or the one value, each printed as Python prints it.
///
/// The `format` filter does the rest, because it charges for the width of its result before it writes it.
fn percent_args(operand: Value) -> Result<Value, Error> {
    let items: Vec<Value> = if operand.is_tuple() {
        operand.try_iter()?.collect()
    } else {
        vec![operand]
    };
    let printed = items.into_iter().map(|item| match item.kind() {
        ValueKind::Map | ValueKind::Seq | ValueKind::None | ValueKind::Bool => python_str(&item),
        _ => Ok(item),
    });
    printed.collect::<Result<Vec<_>, _>>().map(Value::from)
}

fn call_method(
    state: &mut State,
    value: &Value,
    method: &str,
    args: &[Value],
) -> Result<Value, Error> {
    if let Some(text) = value.as_str()
        && let Some(result) = string_methods::call(text, method, args)
    {
        return result;
    }
    minijinja_contrib::pycompat::unknown_method_callback(state, value, method, args)
}
