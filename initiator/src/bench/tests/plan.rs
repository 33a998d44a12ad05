//! Plans against volumes.

use super::*;

const GEOMETRY: Geometry = Geometry {
    size_bytes: 64 << 20,
    block_bytes: 4096,
    optimal_bytes: 4096,
    max_transfer_bytes: 1 << 20,
    max_zeroes_bytes: 0,
    max_discard_bytes: 0,
    read_only: false,
    can_write_zeroes: false,
    can_discard: false,
    volatile_cache: true,
};

fn plan(pattern: Pattern, request_bytes: u64) -> Plan {
    Plan {
        cases: vec![Case { pattern, request_bytes, depth: 8 }],
        time: Duration::from_secs(1),
        ramp: Duration::ZERO,
        rate: None,
        read_percent: 50,
        offset_bytes: 0,
        size_bytes: None,
        seed: 1,
        verify: false,
        fill: false,
    }
}

fn refusal(plan: &Plan, geometry: &Geometry) -> String {
    plan.range(geometry, 2, Some(127)).unwrap_err().to_string()
}

#[test]
fn the_range_is_the_volume_unless_told_otherwise() {
    let whole = plan(Pattern::RandRead, 4096).range(&GEOMETRY, 2, None).unwrap();
    assert_eq!((whole.offset_bytes, whole.size_bytes, whole.parts.len()), (0, 64 << 20, 2));
    let part = Plan { offset_bytes: 1 << 20, size_bytes: Some(2 << 20), ..plan(Pattern::RandRead, 4096) };
    let part = part.range(&GEOMETRY, 2, None).unwrap();
    assert_eq!(part.parts, [Part { offset: 1 << 20, len_bytes: 1 << 20 }, Part { offset: 2 << 20, len_bytes: 1 << 20 }]);
}

#[test]
fn what_does_not_fit_the_volume_is_refused_by_name() {
    let read = |bytes| plan(Pattern::RandRead, bytes);
    assert!(
        refusal(&read(512), &GEOMETRY).starts_with("--bs 512 is not a multiple of the volume's blocks: choose a multiple of 4096 bytes")
    );
    let short = Geometry { max_transfer_bytes: 65536, ..GEOMETRY };
    assert!(refusal(&read(131_072), &short).contains("choose at most 64KiB"));
    let read_only = Geometry { read_only: true, ..GEOMETRY };
    assert!(refusal(&plan(Pattern::RandRw, 4096), &read_only).starts_with("randrw cannot be measured: the volume is read-only"));
    assert!(refusal(&Plan { fill: true, ..read(4096) }, &read_only).contains("the volume is read-only"));
    assert!(read(4096).range(&read_only, 1, None).is_ok());
    let deep = Plan { cases: vec![Case { pattern: Pattern::Read, request_bytes: 4096, depth: 128 }], ..read(4096) };
    assert!(refusal(&deep, &GEOMETRY).contains("--qd 128 is more than the 127 requests"));
    assert!(refusal(&Plan { offset_bytes: 1, ..read(4096) }, &GEOMETRY).starts_with("--offset 1 is not a multiple"));
    assert!(
        refusal(&Plan { size_bytes: Some(65 << 20), ..read(4096) }, &GEOMETRY).contains("the range ends at 65MiB, and the volume at 64MiB")
    );
    assert!(
        refusal(&Plan { size_bytes: Some(4096), ..read(4096) }, &GEOMETRY).contains("no room for a request of 4KiB of each of 2 queues")
    );
}

#[test]
fn ranges_are_walked_in_long_requests_where_they_are_long() {
    let walk = |bytes, size| Plan { size_bytes: Some(size), ..plan(Pattern::Read, bytes) }.range(&GEOMETRY, 1, None).unwrap().walk_bytes;
    assert_eq!(walk(4096, 64 << 20), 131_072);
    assert_eq!(walk(12_288, 64 << 20), 135_168);
    assert_eq!(walk(1 << 20, 64 << 20), 1 << 20);
    assert_eq!(walk(4096, 65_536), 4096);
}

#[test]
fn what_is_walked_is_walked_to_its_end() {
    for (size, queues) in [(1_024_000, 1), (1_024_000, 3), (64 << 20, 3), (65_536, 1)] {
        let plan = Plan { size_bytes: Some(size), verify: true, ..plan(Pattern::RandWrite, 4096) };
        let range = plan.range(&GEOMETRY, queues, None).unwrap();
        assert!(range.parts.iter().all(|part| part.len_bytes.is_multiple_of(range.walk_bytes)), "{size} of {queues}: {range:?}");
    }
}

#[test]
fn walks_are_no_deeper_than_queues() {
    let plan = Plan { verify: true, ..plan(Pattern::RandRead, 4096) };
    let depth = |limit| plan.range(&GEOMETRY, 1, limit).unwrap().walk_depth;
    assert_eq!([depth(None), depth(Some(127)), depth(Some(15))], [32, 32, 15]);
    assert!(plan.range(&GEOMETRY, 1, Some(7)).unwrap_err().to_string().starts_with("--qd 8 is more than the 7 requests"));
}

#[test]
fn every_step_is_counted() {
    let verify = |pattern| Plan { verify: true, ..plan(pattern, 4096) }.steps();
    assert_eq!([verify(Pattern::Read), verify(Pattern::Write), verify(Pattern::RandRw)], [2, 2, 3]);
    assert_eq!(plan(Pattern::RandRw, 4096).steps(), 1);
}
