//! The tree of a YAML document.

use std::fmt;

use serde::de::{self, Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_yaml::{DuplicateKeyPolicy, Error, MessageFormatter, Options, Spanned, UserMessageFormatter, options::MergeKeyPolicy};

use crate::Fault;

/// A place in the document, both counted from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Position {
    pub(crate) line: u32,
    pub(crate) column: u32,
}

impl Position {
    const START: Self = Self { line: 1, column: 1 };
}

/// A value and where it stands.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) value: Value,
    pub(crate) at: Position,
}

/// A key of a mapping and where it stands.
#[derive(Debug)]
pub(crate) struct Key {
    pub(crate) name: String,
    pub(crate) at: Position,
}

#[derive(Debug)]
pub(crate) enum Value {
    Null,
    Bool(bool),
    Integer(i128),
    Float(f64),
    Text(String),
    Sequence(Vec<Node>),
    Mapping(Vec<(Key, Node)>),
}

/// Beyond it, a float no longer looks like what was written.
const FLOAT_SHOWN_MAX: f64 = 1e15;

impl Value {
    /// The value as an error names it.
    pub(crate) fn found(&self) -> String {
        match self {
            Self::Null => "nothing".to_owned(),
            Self::Bool(value) => value.to_string(),
            Self::Integer(value) => value.to_string(),
            Self::Float(value) if value.abs() < FLOAT_SHOWN_MAX => value.to_string(),
            Self::Float(_) => "a number".to_owned(),
            Self::Text(value) => format!("the text {value:?}"),
            Self::Sequence(_) => "a list".to_owned(),
            Self::Mapping(_) => "a mapping".to_owned(),
        }
    }
}

/// Reads a document; at most one fault, for a parser cannot carry on after it.
pub(crate) fn parse(text: &str) -> Result<Node, (Position, Fault)> {
    let mut root: Node = serde_yaml::from_str_with_options(text, options()).map_err(|error| fault(error.without_snippet()))?;
    if matches!(root.value, Value::Null) {
        // The parser tells where the nothing ends.
        root.at = Position::START;
    }
    Ok(root)
}

/// Far above what a configuration needs, far below what would be felt: a file may come from a generator gone wrong.
fn options() -> Options {
    serde_yaml::options! {
        budget: serde_yaml::budget! {
            max_depth: 32,
            max_nodes: 200_000,
        },
        alias_limits: serde_yaml::alias_limits! {
            max_total_replayed_events: 200_000,
        },
        duplicate_keys: DuplicateKeyPolicy::Error,
        merge_keys: MergeKeyPolicy::Error,
        strict_booleans: true,
        with_snippet: false,
    }
}

fn fault(error: &Error) -> (Position, Fault) {
    let at = error.location().map_or(Position::START, position);
    (at, fault_kind(error))
}

fn fault_kind(error: &Error) -> Fault {
    match error {
        Error::AliasError { error, .. } => fault_kind(error),
        Error::DuplicateMappingKey { key, .. } => Fault::DuplicateKey(key.clone().unwrap_or_default()),
        Error::MultipleDocuments { .. } => Fault::SecondDocument,
        Error::MergeKeyNotAllowed { .. } => Fault::MergeKey,
        Error::Budget { .. } | Error::AliasReplayLimitExceeded { .. } => Fault::TooMuch,
        other => Fault::Syntax(UserMessageFormatter.format_message(other).into_owned()),
    }
}

fn position(location: serde_yaml::Location) -> Position {
    let clamp = |n: u64| u32::try_from(n.max(1)).unwrap_or(u32::MAX);
    Position { line: clamp(location.line()), column: clamp(location.column()) }
}

impl<'de> Deserialize<'de> for Node {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Spanned::deserialize(deserializer).map(|spanned| Self { at: position(spanned.referenced), value: spanned.value })
    }
}

impl<'de> Deserialize<'de> for Key {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let spanned: Spanned<String> = Spanned::deserialize(deserializer)?;
        check_len(&spanned.value)?;
        Ok(Self { at: position(spanned.referenced), name: spanned.value })
    }
}

impl<'de> Deserialize<'de> for Value {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ValueVisitor)
    }
}

/// PATH_MAX, the longest text that has a use. Without a limit, aliases of one long text would fill the memory.
const TEXT_MAX_BYTES: usize = 4096;

fn check_len<E: de::Error>(text: &str) -> Result<(), E> {
    match text.len() {
        0..=TEXT_MAX_BYTES => Ok(()),
        len => Err(E::custom(format_args!("a text of {len} bytes is too long: {TEXT_MAX_BYTES} is the most"))),
    }
}

struct ValueVisitor;

impl<'de> Visitor<'de> for ValueVisitor {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any YAML value")
    }

    fn visit_unit<E: de::Error>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E: de::Error>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E: de::Error>(self, value: i64) -> Result<Value, E> {
        Ok(Value::Integer(value.into()))
    }

    fn visit_u64<E: de::Error>(self, value: u64) -> Result<Value, E> {
        Ok(Value::Integer(value.into()))
    }

    fn visit_i128<E: de::Error>(self, value: i128) -> Result<Value, E> {
        Ok(Value::Integer(value))
    }

    fn visit_u128<E: de::Error>(self, value: u128) -> Result<Value, E> {
        // Beyond every bound of ours anyway.
        Ok(Value::Integer(i128::try_from(value).unwrap_or(i128::MAX)))
    }

    fn visit_f64<E: de::Error>(self, value: f64) -> Result<Value, E> {
        Ok(Value::Float(value))
    }

    fn visit_str<E: de::Error>(self, value: &str) -> Result<Value, E> {
        check_len(value)?;
        Ok(Value::Text(value.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut access: A) -> Result<Value, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = access.next_element()? {
            items.push(item);
        }
        Ok(Value::Sequence(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Value, A::Error> {
        let mut entries = Vec::new();
        while let Some(entry) = access.next_entry()? {
            entries.push(entry);
        }
        Ok(Value::Mapping(entries))
    }
}
