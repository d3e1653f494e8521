//! The bytes that every token id stands for.
//!
//! Owns the table and how it is read out of a tokenizer's decoder. Because decoding is concatenation, a text can be
//! made one token at a time. Does not know stop strings or special-token rules.

use serde_json::Value;

use crate::TokenizerError;
use crate::byte_alphabet::byte_of;

/// How a vocabulary spells its tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Spelling {
    /// Every character stands for one byte (GPT-2's byte alphabet).
    pub(crate) byte_level: bool,
    /// Texts replaced by others, in order (SentencePiece: U+2581 by a blank).
    pub(crate) replace: Vec<(String, String)>,
    /// `<0x41>` stands for the byte 0x41.
    pub(crate) byte_fallback: bool,
    /// A text loses one leading blank, which encoding had added.
    pub(crate) strip_start: bool,
}

impl Spelling {
    /// GPT-2's.
    pub(crate) fn byte_level() -> Self {
        Spelling {
            byte_level: true,
            replace: Vec::new(),
            byte_fallback: false,
            strip_start: false,
        }
    }

    /// SentencePiece's; `strip_start` when encoding puts a blank before a text.
    pub(crate) fn sentencepiece(strip_start: bool) -> Self {
        let replace = vec![("\u{2581}".to_owned(), " ".to_owned())];
        Spelling {
            byte_level: false,
            replace,
            byte_fallback: true,
            strip_start,
        }
    }

    /// The spelling that a `decoder` of tokenizer.json undoes.
    pub(crate) fn from_decoder(decoder: &Value) -> Result<Self, TokenizerError> {
        let mut spelling = Spelling {
            byte_level: false,
            replace: Vec::new(),
            byte_fallback: false,
            strip_start: false,
        };
        spelling.add(decoder)?;
        Ok(spelling)
    }

    fn add(&mut self, decoder: &Value) -> Result<(), TokenizerError> {
        let kind = decoder
            .get("type")
            .and_then(Value::as_str)
            .unwrap_or("none");
        match kind {
            "Sequence" => {
                let steps = decoder.get("decoders").and_then(Value::as_array);
                steps
                    .into_iter()
                    .flatten()
                    .try_for_each(|step| self.add(step))?;
            }
            "ByteLevel" => self.byte_level = true,
            "ByteFallback" => self.byte_fallback = true,
            "Fuse" => {}
            "Metaspace" => {
                let mark = decoder
                    .get("replacement")
                    .and_then(Value::as_str)
                    .unwrap_or("\u{2581}");
                self.replace.push((mark.to_owned(), " ".to_owned()));
                let scheme = decoder.get("prepend_scheme").and_then(Value::as_str);
                self.strip_start = scheme != Some("never");
            }
            "Replace" => {
                let pattern = decoder
                    .get("pattern")
                    .and_then(|pattern| pattern.get("String"));
                let content = decoder.get("content").and_then(Value::as_str);
                let (Some(Value::String(pattern)), Some(content)) = (pattern, content) else {
                    return Err(TokenizerError::NotSupported(
                        "its decoder replaces by a regular expression".to_owned(),
                    ));
                };
                self.replace.push((pattern.clone(), content.to_owned()));
            }
            "Strip" => {
                let number = |key: &str| decoder.get(key).and_then(Value::as_u64).unwrap_or(0);
                if decoder.get("content").and_then(Value::as_str) != Some(" ")
                    || number("start") > 1
                    || number("stop") > 0
                {
                    return Err(TokenizerError::NotSupported(
                        "its decoder strips something else than one leading blank".to_owned(),
                    ));
                }
                self.strip_start = number("start") == 1;
            }
            other => {
                return Err(TokenizerError::NotSupported(format!(
                    "its decoder is of type {other}"
                )));
            }
        }
        Ok(())
    }

    /// The bytes of an ordinary token spelled `text`.
    fn bytes_of(&self, text: &str) -> Vec<u8> {
        if self.byte_fallback
            && let Some(hex) = text
                .strip_prefix("<0x")
                .and_then(|rest| rest.strip_suffix('>'))
            && hex.len() == 2
            && let Ok(byte) = u8::from_str_radix(hex, 16)
        {
            return vec![byte];
        }
        let mut text = std::borrow::Cow::Borrowed(text);
        for (from, to) in &self.replace {
            if text.contains(from.as_str()) {
                text = text.replace(from.as_str(), to).into();
            }
        }
        if self.byte_level {
            // A token with a character outside the alphabet is written as it is.
            if let Some(bytes) = text.chars().map(byte_of).collect::<Option<Vec<u8>>>() {
                return bytes;
            }
        }
        text.into_owned().into_bytes()
    }
}

/// The bytes of all ids, in one buffer.
#[derive(Debug, Default)]
pub(crate) struct TokenTable {
    data: Vec<u8>,
    ends: Vec<u32>,
}

impl TokenTable {
    /// Appends the next id: an added token stands for its own text, any other for what the spelling says.
    pub(crate) fn push(&mut self, text: &str, is_added: bool, spelling: &Spelling) {
        if is_added {
            self.data.extend_from_slice(text.as_bytes());
        } else {
            self.data.extend_from_slice(&spelling.bytes_of(text));
        }
        self.ends.push(self.data.len() as u32);
    }

    /// The bytes of `id`; empty for an id without a token.
    pub(crate) fn get(&self, id: u32) -> &[u8] {
        let id = id as usize;
        let Some(&end) = self.ends.get(id) else {
            return &[];
        };
        let start = if id == 0 { 0 } else { self.ends[id - 1] };
        &self.data[start as usize..end as usize]
    }

    /// One more than the highest id.
    pub(crate) fn len(&self) -> usize {
        self.ends.len()
    }
}
