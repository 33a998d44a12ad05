//! Unsafe shutdowns: what counts as one, what does not, and whose count it is.

use std::os::unix::fs::PermissionsExt;

use uuid::Uuid;

use super::*;

fn boot(number: u128) -> BootId {
    BootId(Uuid::from_u128(number))
}

/// A file that is there, in this boot.
fn during(path: &Path, number: u128) -> OpenOptions {
    let source = Source::File { path: path.to_owned(), size: None, create: false };
    OpenOptions { boot: Some(boot(number)), ..options(source, 512) }
}

fn made(path: &Path, number: u128) -> OpenOptions {
    OpenOptions { source: file_source(path, 1 << 20), ..during(path, number) }
}

/// Opens the store as the next daemon would, and says what it counts. The daemon is killed afterwards.
fn killed(options: &OpenOptions) -> u64 {
    Store::open(options).unwrap().unsafe_shutdowns()
}

/// The same, but the daemon stops in an orderly way.
fn stopped(options: &OpenOptions) -> u64 {
    let store = Store::open(options).unwrap();
    store.close().unwrap();
    store.unsafe_shutdowns()
}

/// Larger than any that comes from counting.
fn begins_anew(count: u64) -> bool {
    count > 1_000_000
}

#[test]
fn only_a_machine_that_went_down_under_a_daemon_counts() {
    let folder = folder_on_disk();
    let path = folder.path().join("x.img");
    assert_eq!(stopped(&made(&path, 1)), 0, "a fresh file");
    assert_eq!(stopped(&during(&path, 1)), 0);
    assert_eq!(stopped(&during(&path, 2)), 0, "rebooted while it was clean");
    assert_eq!(killed(&during(&path, 2)), 0);
    assert_eq!(killed(&during(&path, 2)), 0, "a killed daemon leaves its writes with the kernel");
    assert_eq!(killed(&during(&path, 3)), 1, "the kernel is gone, and what it held");
    assert_eq!(killed(&during(&path, 3)), 1, "counted once");
    assert_eq!(killed(&during(&path, 4)), 2);
    assert_eq!(stopped(&during(&path, 4)), 2);
    assert_eq!(stopped(&during(&path, 5)), 2, "it never decreases");
}

#[test]
fn what_is_known_of_earlier_writes_is_told_when_a_store_is_opened() {
    let folder = folder_on_disk();
    let path = folder.path().join("x.img");
    let past = |options: &OpenOptions| Store::open(options).unwrap().past();
    assert_eq!(past(&made(&path, 1)), Past::Intact, "a fresh file");
    assert_eq!(past(&during(&path, 1)), Past::Intact, "killed");
    assert_eq!(past(&during(&path, 2)), Past::Lost);
    assert_eq!(past(&during(&path, 2)), Past::Intact, "told once");
    std::fs::remove_file(folder.path().join(".x.img.godwit")).unwrap();
    assert_eq!(past(&during(&path, 2)), Past::Unknown);
    assert_eq!(past(&during(&path, 2)), Past::Intact);
}

#[test]
fn the_mark_is_there_before_the_first_write_for_its_owner_alone_and_by_the_real_name() {
    let folder = folder_on_disk();
    let (path, link) = (folder.path().join("x.img"), folder.path().join("link"));
    std::os::unix::fs::symlink(&path, &link).unwrap();
    let store = Store::open(&made(&path, 1)).unwrap();
    let mark = folder.path().join(".x.img.godwit");
    assert_eq!(std::fs::metadata(&mark).unwrap().permissions().mode() & 0o777, 0o600);
    let text = std::fs::read_to_string(&mark).unwrap();
    assert!(text.contains("in use") && text.contains(&boot(1).0.to_string()), "{text}");
    drop(store);
    assert_eq!(killed(&during(&link, 2)), 1, "the same mark by another name");
    assert!(!folder.path().join(".link.godwit").exists());
    let names: Vec<_> = std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names.len(), 3, "nothing is left over: {names:?}");
}

#[test]
fn a_sync_that_failed_counts_at_the_next_start_of_the_daemon_alone() {
    let folder = folder_on_disk();
    let path = folder.path().join("x.img");
    let store = Store::open(&made(&path, 1)).unwrap();
    store.shared.note_sync_failure(&std::io::Error::other("on purpose"));
    store.keep_mark().unwrap();
    assert_eq!(store.unsafe_shutdowns(), 0);
    drop(store);
    assert_eq!(killed(&during(&path, 1)), 1, "in the same boot");
    let store = Store::open(&during(&path, 1)).unwrap();
    store.shared.note_sync_failure(&std::io::Error::other("on purpose"));
    store.close().unwrap();
    drop(store);
    assert_eq!(stopped(&during(&path, 1)), 2, "an orderly stop does not make good what was lost");
    assert_eq!(stopped(&during(&path, 1)), 2);
}

#[test]
fn a_truncation_that_nobody_has_dealt_with_counts_at_the_next_start() {
    let folder = folder_on_disk();
    let path = folder.path().join("x.img");
    let set_len = |len| std::fs::File::options().write(true).open(&path).unwrap().set_len(len).unwrap();
    let store = Store::open(&made(&path, 1)).unwrap();
    set_len(4096);
    store.close().unwrap();
    assert_eq!(store.unsafe_shutdowns(), 0);
    drop(store);
    set_len(1 << 20);
    let store = Store::open(&during(&path, 1)).unwrap();
    assert_eq!(store.unsafe_shutdowns(), 1);
    set_len(4096);
    store.resize(4096);
    store.close().unwrap();
    drop(store);
    assert_eq!(stopped(&during(&path, 1)), 1, "an administrator made it smaller");
}

#[test]
fn reopening_moves_the_count_before_a_flush_can_succeed() {
    let folder = folder_on_disk();
    let path = folder.path().join("x.img");
    let store = Store::open(&made(&path, 1)).unwrap();
    store.reopen(|| panic!("nothing was lost")).unwrap();
    store.shared.note_sync_failure(&std::io::Error::other("on purpose"));
    let mut seen = None;
    store.reopen(|| seen = Some((store.unsafe_shutdowns(), store.sync_failed()))).unwrap();
    assert_eq!(seen, Some((1, true)));
    assert!(!store.sync_failed());
    store.close().unwrap();
    drop(store);
    assert_eq!(stopped(&during(&path, 1)), 1);
}

#[test]
fn without_its_mark_a_store_counts_from_a_number_that_nobody_has_seen() {
    let folder = folder_on_disk();
    let path = folder.path().join("x.img");
    let mark = folder.path().join(".x.img.godwit");
    stopped(&made(&path, 1));
    std::fs::remove_file(&mark).unwrap();
    let count = stopped(&during(&path, 1));
    assert!(begins_anew(count));
    assert_eq!(stopped(&during(&path, 2)), count);
    for rubbish in ["", "{}", "rubbish", "\u{0}", &"x".repeat(10_000)] {
        std::fs::write(&mark, rubbish).unwrap();
        assert!(begins_anew(stopped(&during(&path, 1))), "{rubbish:?}");
    }
}

#[test]
fn a_copy_does_not_inherit_the_mark_and_neither_does_an_image_that_took_the_place_of_another() {
    let folder = folder_on_disk();
    let at = |name: &str| folder.path().join(name);
    stopped(&made(&at("x.img"), 1));
    let named = |path: &Path| OpenOptions { uuid: Some(Uuid::from_u128(7)), ..during(path, 1) };
    assert_eq!(stopped(&named(&at("x.img"))), 0, "another name for the same file");
    std::fs::copy(at("x.img"), at("y.img")).unwrap();
    std::fs::copy(at(".x.img.godwit"), at(".y.img.godwit")).unwrap();
    assert!(begins_anew(stopped(&named(&at("y.img")))), "though it says that it is the same");
    std::fs::copy(at("x.img"), at("backup")).unwrap();
    std::fs::rename(at("backup"), at("x.img")).unwrap();
    assert!(begins_anew(stopped(&named(&at("x.img")))));
    // A file that is made anew is empty, and a mark that is left of its predecessor means nothing.
    std::fs::remove_file(at("x.img")).unwrap();
    assert_eq!(stopped(&made(&at("x.img"), 1)), 0);
}

#[test]
fn a_reader_reports_the_count_and_leaves_the_mark_alone() {
    let folder = folder_on_disk();
    let path = folder.path().join("x.img");
    killed(&made(&path, 1));
    let mark = folder.path().join(".x.img.godwit");
    let before = std::fs::read(&mark).unwrap();
    let reading = |number| OpenOptions { read_only: true, ..during(&path, number) };
    assert_eq!((stopped(&reading(1)), stopped(&reading(2)), stopped(&reading(2))), (0, 1, 1));
    assert_eq!(std::fs::read(&mark).unwrap(), before);
    assert_eq!(killed(&during(&path, 2)), 1, "it is counted by the one who writes");
}

#[test]
fn a_mark_that_cannot_be_written_is_an_error_for_a_writer_and_none_for_a_reader() {
    let folder = folder_on_disk();
    let path = write(folder.path().join("x.img"), &[0; 4096]);
    // Also root cannot replace a folder by a file.
    std::fs::create_dir(folder.path().join(".x.img.godwit")).unwrap();
    let line = Store::open(&during(&path, 1)).unwrap_err().to_string();
    assert!(line.contains(".x.img.godwit") && line.contains("write access to the folder") && !line.contains('\n'), "{line}");
    Store::open(&OpenOptions { read_only: true, ..during(&path, 1) }).unwrap();
}

#[test]
fn memory_has_neither_mark_nor_count() {
    assert_eq!(stopped(&options(Source::Memory { size: 8192 }, 512)), 0);
}
