//! Values that know where they were written.

use std::{
    collections::{HashMap, hash_map::Entry},
    fmt,
    hash::Hash,
    ops::Deref,
    sync::Arc,
};

/// Where a value was written, printed as `target.yaml:12:9` or `--export disk.img`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Origin {
    /// In a file; line and column count from 1.
    File {
        /// The file's name as it was given.
        file: Arc<str>,
        /// The line.
        line: u32,
        /// The column, in characters.
        column: u32,
    },
    /// On the command line.
    Argument(Arc<str>),
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File { file, line, column } => write!(f, "{file}:{line}:{column}"),
            Self::Argument(argument) => f.write_str(argument),
        }
    }
}

/// A value and where it was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Located<T> {
    /// The value.
    pub value: T,
    /// Where it was written.
    pub origin: Origin,
}

impl<T> Located<T> {
    /// Another value written in the same place.
    pub fn map<U>(self, f: impl FnOnce(T) -> U) -> Located<U> {
        Located { value: f(self.value), origin: self.origin }
    }
}

impl<T> Deref for Located<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

/// Where the key was seen before, if it was.
pub(crate) fn seen<K: Hash + Eq>(map: &mut HashMap<K, Origin>, key: K, origin: &Origin) -> Option<Origin> {
    match map.entry(key) {
        Entry::Occupied(entry) => Some(entry.get().clone()),
        Entry::Vacant(entry) => {
            entry.insert(origin.clone());
            None
        }
    }
}
