//! The front end from the socket to the block operations: real sockets, a volume in memory that ends its operations when a test says so.

#![expect(clippy::cast_possible_truncation, reason = "numbers of blocks are short, and patterns of bytes may repeat")]

mod commands;
mod ends;
mod fragments;
mod large;
mod model;
mod queue;
mod tools;
mod world;
