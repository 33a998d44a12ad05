//! Reads mappings and lists of a known shape, and collects every fault on the way.

use std::sync::Arc;

use super::{
    node::{Key, Node, Position, Value, parse},
    scalar::{Mismatch, Scalar},
};
use crate::{Fault, Located, Origin, Problem, Problems};

/// Collects the faults of one file.
#[derive(Debug)]
pub(crate) struct Decoder {
    file: Arc<str>,
    problems: Vec<Problem>,
}

/// A mapping of which only known keys are left.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Table<'n> {
    entries: &'n [(Key, Node)],
    at: Position,
    place: &'static str,
}

/// A list that a key holds.
#[derive(Debug)]
pub(crate) struct List {
    pub(crate) key: &'static str,
    /// What would be right, for an error.
    pub(crate) expected: &'static str,
    /// The most items.
    pub(crate) max: usize,
}

/// Reads the text of a file with what reads its root; `file` is its name for errors.
pub(crate) fn decode<T>(text: &str, file: &str, root: fn(&mut Decoder, &Node) -> Option<T>) -> Result<T, Problems> {
    let mut decoder = Decoder { file: file.into(), problems: Vec::new() };
    let value = match parse(text) {
        Ok(node) => root(&mut decoder, &node),
        Err((at, fault)) => {
            decoder.fault(at, fault);
            None
        }
    };
    match value {
        Some(value) if decoder.problems.is_empty() => Ok(value),
        _ => Err(Problems::of(decoder.problems)),
    }
}

pub(crate) fn value_or_default<T: Default>(located: Option<Located<T>>) -> T {
    located.map(|l| l.value).unwrap_or_default()
}

impl Table<'_> {
    /// Where it is.
    pub(crate) fn at(&self) -> Position {
        self.at
    }
}

impl Decoder {
    /// How many faults there are so far.
    pub(crate) fn faults(&self) -> usize {
        self.problems.len()
    }

    pub(crate) fn origin(&self, at: Position) -> Origin {
        Origin::File { file: Arc::clone(&self.file), line: at.line, column: at.column }
    }

    pub(crate) fn fault(&mut self, at: Position, fault: Fault) {
        let origin = self.origin(at);
        self.fault_at(origin, fault);
    }

    pub(crate) fn fault_at(&mut self, origin: Origin, fault: Fault) {
        self.problems.push(Problem { origin, fault });
    }

    /// A mapping of which each key is one of `known`; `place` names it in errors.
    pub(crate) fn table<'n>(&mut self, node: &'n Node, place: &'static str, known: &'static [&'static str]) -> Option<Table<'n>> {
        let Value::Mapping(entries) = &node.value else {
            let found = node.value.found();
            self.fault(node.at, Fault::NotATable { place, known, found });
            return None;
        };
        for (key, _) in entries {
            if !known.contains(&key.name.as_str()) {
                let key_name = key.name.clone();
                self.fault(key.at, Fault::UnknownKey { key: key_name, place, known });
            }
        }
        Some(Table { entries, at: node.at, place })
    }

    /// The value of a key, if the key is there.
    pub(crate) fn optional<T: Scalar>(&mut self, table: &Table<'_>, key: &'static str) -> Option<Located<T>> {
        let node = self.node(table, key)?;
        self.scalar(node, key)
    }

    /// The value of a key that must be there.
    pub(crate) fn required<T: Scalar>(&mut self, table: &Table<'_>, key: &'static str) -> Option<Located<T>> {
        let node = self.required_node(table, key, T::EXPECTED)?;
        self.scalar(node, key)
    }

    /// The node of a key, if the key is there.
    pub(crate) fn node<'n>(&self, table: &Table<'n>, key: &str) -> Option<&'n Node> {
        table.entries.iter().find_map(|(k, node)| (k.name == key).then_some(node))
    }

    /// The node of a key that must be there.
    pub(crate) fn required_node<'n>(&mut self, table: &Table<'n>, key: &'static str, expected: &'static str) -> Option<&'n Node> {
        let node = self.node(table, key);
        if node.is_none() {
            let place = table.place;
            self.fault(table.at, Fault::MissingKey { key, place, expected });
        }
        node
    }

    /// The one key that a mapping has, out of `known`.
    pub(crate) fn variant<'n>(
        &mut self,
        node: &'n Node,
        place: &'static str,
        known: &'static [&'static str],
    ) -> Option<(&'n str, &'n Node)> {
        let table = self.table(node, place, known)?;
        match table.entries {
            [(key, node)] => known.contains(&key.name.as_str()).then_some((key.name.as_str(), node)),
            _ => {
                self.fault(node.at, Fault::NotOne { place, known });
                None
            }
        }
    }

    /// The one key that a mapping has out of `known`, which are not all its keys. That it has none is not told if it is `misspelt`, for then
    /// it was told already.
    pub(crate) fn one_of<'n>(
        &mut self,
        table: &Table<'n>,
        known: &'static [&'static str],
        misspelt: bool,
    ) -> Option<(&'static str, &'n Node)> {
        let mut found = known.iter().filter_map(|&key| Some((key, self.node(table, key)?)));
        match (found.next(), found.next()) {
            (Some(one), None) => return Some(one),
            (None, _) if misspelt => return None,
            _ => {}
        }
        self.fault(table.at, Fault::NotOne { place: table.place, known });
        None
    }

    /// Faults where a mapping has one of `keys`.
    pub(crate) fn refuse(&mut self, table: &Table<'_>, keys: &[&'static str], fault: fn(&'static str) -> Fault) {
        for &key in keys {
            if let Some(node) = self.node(table, key) {
                self.fault(node.at, fault(key));
            }
        }
    }

    /// The items of a list, if it is not too long.
    pub(crate) fn list<'n>(&mut self, node: &'n Node, list: &List) -> Option<&'n [Node]> {
        let &List { key, expected, max } = list;
        let fault = match &node.value {
            Value::Sequence(items) if items.len() <= max => return Some(items),
            Value::Sequence(items) => {
                let count = items.len();
                Fault::TooMany { key, count, max }
            }
            other => {
                let found = other.found();
                Fault::WrongType { key, expected, found }
            }
        };
        self.fault(node.at, fault);
        None
    }

    /// The items of a list that must be there and must not be empty.
    pub(crate) fn items<T>(&mut self, table: &Table<'_>, list: &List, mut item: impl FnMut(&mut Self, &Node) -> Option<T>) -> Vec<T> {
        let &List { key, expected, .. } = list;
        let Some(node) = self.required_node(table, key, expected) else {
            return Vec::new();
        };
        let Some(nodes) = self.list(node, list) else {
            return Vec::new();
        };
        if nodes.is_empty() {
            self.fault(node.at, Fault::Empty { key, expected });
        }
        nodes.iter().filter_map(|node| item(self, node)).collect()
    }

    /// A leaf; `key` names it in errors.
    pub(crate) fn scalar<T: Scalar>(&mut self, node: &Node, key: &'static str) -> Option<Located<T>> {
        let fault = match T::read(&node.value) {
            Ok(value) => {
                let origin = self.origin(node.at);
                return Some(Located { value, origin });
            }
            Err(Mismatch::Kind) => Fault::WrongType { key, expected: T::EXPECTED, found: node.value.found() },
            Err(Mismatch::Unquoted) => Fault::Unquoted { key, found: node.value.found() },
            Err(Mismatch::Value(reason)) => Fault::Value { key, reason },
        };
        self.fault(node.at, fault);
        None
    }
}
