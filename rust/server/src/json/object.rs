//! An object of a checked body: fields are taken by name, and what nobody knows is told.

use std::borrow::Cow;

use super::raw::Raw;

/// The entries of an object. `null` counts as absent.
#[derive(Clone, Debug)]
pub struct Object<'a> {
    path: String,
    entries: Vec<(Cow<'a, str>, Raw<'a>)>,
}

impl<'a> Object<'a> {
    pub(super) fn new(path: String, entries: Vec<(Cow<'a, str>, Raw<'a>)>) -> Self {
        Object { path, entries }
    }

    /// The object's path; empty for the body.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// The path of one of its fields.
    pub fn path_of(&self, name: &str) -> String {
        if self.path.is_empty() {
            name.to_owned()
        } else {
            format!("{}.{name}", self.path)
        }
    }

    /// Takes a field out; None when it is absent or null.
    pub fn take(&mut self, name: &str) -> Option<Raw<'a>> {
        let at = self.entries.iter().position(|(key, _)| key == name)?;
        let (_, value) = self.entries.swap_remove(at);
        (!value.is_null()).then_some(value)
    }

    /// Gives a field another name.
    pub fn rename(&mut self, from: &str, to: &'static str) {
        for (key, _) in self.entries.iter_mut().filter(|(key, _)| key == from) {
            *key = Cow::Borrowed(to);
        }
    }

    /// Whether a field is there and not null.
    pub fn has(&self, name: &str) -> bool {
        self.entries
            .iter()
            .any(|(key, value)| key == name && !value.is_null())
    }

    /// The entries that are left.
    pub fn entries(&self) -> impl Iterator<Item = (&str, &Raw<'a>)> {
        self.entries
            .iter()
            .map(|(key, value)| (key.as_ref(), value))
    }

    /// Number of entries that are left.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether no entry is left.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Drops entries for which `keep` says no.
    pub fn retain(&mut self, mut keep: impl FnMut(&str, &Raw<'a>) -> bool) {
        self.entries.retain(|(key, value)| keep(key, value));
    }
}
