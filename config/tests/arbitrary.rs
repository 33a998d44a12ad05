//! Whatever a configuration holds, it is taken or refused with a place; it never panics.

use godwit_config::{Initiator, Origin, Problems, Target};
use proptest::prelude::*;

const TARGET: &str = include_str!("../samples/target.yaml");
const INITIATOR: &str = include_str!("../samples/initiator.yaml");

fn taken_or_refused_with_a_place(text: &str) -> Result<(), TestCaseError> {
    places_are_in(text, Target::parse(text, "t.yaml", false).err())?;
    places_are_in(text, Initiator::parse(text, "i.yaml").err())
}

fn places_are_in(text: &str, problems: Option<Problems>) -> Result<(), TestCaseError> {
    let Some(problems) = problems else {
        return Ok(());
    };
    let lines = text.lines().count().max(1) + 1;
    for problem in problems.iter() {
        match &problem.origin {
            Origin::File { line, column, .. } => {
                prop_assert!((1..=lines).contains(&usize::try_from(*line)?) && *column >= 1, "{problem}");
            }
            Origin::Argument(_) => prop_assert!(false, "{problem}"),
        }
        prop_assert!(!problem.to_string().contains('\n'));
    }
    Ok(())
}

proptest! {
    #[test]
    fn any_text(text in "\\PC{0,200}|[a-z:\\-{}\\[\\], &*!\n\t\"'|>#0-9]{0,200}") {
        taken_or_refused_with_a_place(&text)?;
    }

    #[test]
    fn the_samples_with_a_piece_of_them_moved(from in any::<prop::sample::Index>(), len in 0..60_usize, to in any::<prop::sample::Index>(), text in "\\PC{0,6}") {
        for sample in [TARGET, INITIATOR] {
            let bytes = sample.as_bytes();
            let (from, to) = (from.index(bytes.len()), to.index(bytes.len()));
            let piece = &bytes[from..(from + len).min(bytes.len())];
            let mut moved = bytes[..to].to_vec();
            moved.extend_from_slice(text.as_bytes());
            moved.extend_from_slice(piece);
            moved.extend_from_slice(&bytes[to..]);
            taken_or_refused_with_a_place(&String::from_utf8_lossy(&moved))?;
        }
    }

    #[test]
    fn a_target_with_any_leaves(leaf in "\\PC{0,12}|-?[0-9]{1,40}|[0-9.e+]{1,12}|\\[\\]|\\{\\}|~|true", at in 0..6_usize) {
        let mut leaves = ["iwarp", "127.0.0.1:0", "nqn.2026-11.org.example:a", "1", "/a", "4KiB"].map(str::to_owned);
        leaves[at] = leaf;
        let [transport, address, nqn, nsid, path, size] = leaves;
        let text = format!(
            "listeners:\n  - transport: {transport}\n    address: {address}\nsubsystems:\n  - nqn: {nqn}\n    allow_any_host: true\n    namespaces:\n      - nsid: {nsid}\n        backend:\n          file:\n            path: {path}\n            size: {size}\n"
        );
        taken_or_refused_with_a_place(&text)?;
    }

    #[test]
    fn an_initiator_with_any_leaves(leaf in "\\PC{0,12}|-?[0-9]{1,40}|[0-9.e+]{1,12}|\\[\\]|\\{\\}|~|true", at in 0..8_usize) {
        let mut leaves = ["a", "iwarp://127.0.0.1", "nqn.2026-11.org.example:a", "1", "unix:/a", "600", "\"600\"", "127.0.0.1:0"].map(str::to_owned);
        leaves[at] = leaf;
        let [name, url, nqn, nsid, nbd, seconds, mode, metrics] = leaves;
        let text = format!(
            "metrics: {metrics}\nvolumes:\n  - name: {name}\n    addresses:\n      - {url}\n    nqn: {nqn}\n    nsid: {nsid}\n    nbd: {nbd}\n    nbd_mode: {mode}\n    ctrl_loss_tmo: {seconds}\n"
        );
        taken_or_refused_with_a_place(&text)?;
    }
}
