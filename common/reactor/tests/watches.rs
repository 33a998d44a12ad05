//! Descriptors that the caller brings, and turns that it keeps from sleeping.

#![allow(clippy::unwrap_used, reason = "also in what the tests share")]

mod support;

use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use godwit_reactor::{Event, Reactor, Token};
use nix::sys::eventfd::{EfdFlags, EventFd};
use support::Loop;

const BELL: Token = Token(7);

fn bell() -> (EventFd, OwnedFd) {
    let bell = EventFd::from_value_and_flags(0, EfdFlags::EFD_NONBLOCK).unwrap();
    let watched = bell.as_fd().try_clone_to_owned().unwrap();
    (bell, watched)
}

fn rings(it: &mut Loop) -> usize {
    it.pass(Duration::from_millis(50));
    let count = it.seen.iter().filter(|event| matches!(event, Event::Readable { token: BELL })).count();
    it.seen.clear();
    count
}

#[test]
fn a_descriptor_is_told_of_once_until_it_is_watched_again() {
    let it = &mut Loop::sleeping();
    let (bell, watched) = bell();
    let watch = it.reactor.watch(watched, BELL).unwrap();
    assert_eq!(rings(it), 0);
    bell.write(1).unwrap();
    assert_eq!(rings(it), 1);
    bell.write(1).unwrap();
    assert_eq!(rings(it), 0, "nobody has asked again");
    it.reactor.watch_again(watch).unwrap();
    assert_eq!(rings(it), 1, "what came in between is not missed");
    bell.read().unwrap();
    it.reactor.watch_again(watch).unwrap();
    assert_eq!(rings(it), 0, "it was read");
}

#[test]
fn a_watch_that_has_ended_is_silent_and_lets_its_descriptor_go() {
    let it = &mut Loop::sleeping();
    let (bell, watched) = bell();
    let watch = it.reactor.watch(watched, BELL).unwrap();
    it.reactor.unwatch(watch);
    bell.write(1).unwrap();
    assert_eq!(rings(it), 0);
    it.reactor.watch_again(watch).unwrap();
    assert_eq!(rings(it), 0);
    // Its place is taken by another one, which the old name does not reach.
    let (other, watched) = self::bell();
    let next = it.reactor.watch(watched, BELL).unwrap();
    it.reactor.unwatch(watch);
    other.write(1).unwrap();
    assert_eq!(rings(it), 1);
    it.reactor.unwatch(next);
}

/// How long a turn sleeps with a timer that is due in a while.
fn turn_takes(it: &mut Loop) -> Duration {
    let started = Instant::now();
    it.turn(Duration::from_millis(200));
    started.elapsed()
}

#[test]
fn who_has_found_something_is_not_put_to_sleep_before_it_looks_again() {
    let it = &mut Loop::sleeping();
    assert!(it.reactor.keeps_looking(true));
    assert!(turn_takes(it) < Duration::from_millis(100));
    assert!(!it.reactor.keeps_looking(false), "without a budget there is no spinning");
    assert!(turn_takes(it) >= Duration::from_millis(190));
}

#[test]
fn who_finds_nothing_keeps_looking_for_the_budget() {
    let it = &mut Loop::spinning(Duration::from_millis(20));
    assert!(it.reactor.keeps_looking(true));
    it.turn(Duration::from_millis(200));
    let started = Instant::now();
    let mut turns = 0;
    while it.reactor.keeps_looking(false) {
        it.turn(Duration::from_millis(200));
        turns += 1;
    }
    assert!(turns > 1, "it was sent to sleep after {turns} turns");
    assert!(started.elapsed() < Duration::from_millis(150), "and told to sleep when the budget was used up");
}

/// How long a thread keeps looking that awaits something, or not, after some answers that came so late.
fn looks_for(it: &mut Loop, awaits: bool, late: Duration) -> Duration {
    it.reactor.expects(true);
    for _ in 0..8 {
        assert!(it.reactor.keeps_looking(true));
        it.turn(Duration::ZERO);
        std::thread::sleep(late);
        it.turn(Duration::ZERO);
    }
    it.reactor.expects(awaits);
    assert!(it.reactor.keeps_looking(true));
    it.turn(Duration::ZERO);
    let started = Instant::now();
    while it.reactor.keeps_looking(false) {
        it.turn(Duration::ZERO);
    }
    started.elapsed()
}

#[test]
fn who_awaits_an_answer_looks_longer_where_answers_came_soon_after_the_budget() {
    let it = &mut Loop::spinning(Duration::from_micros(100));
    let mut looks = |awaits, late| {
        let mut all: Vec<Duration> = (0..10).map(|_| looks_for(it, awaits, Duration::from_micros(late))).collect();
        all.sort_unstable();
        all
    };
    let patient = looks(true, 200);
    assert!(patient[5] >= Duration::from_micros(900), "answers come, and it looked for {patient:?}");
    let idle = looks(false, 200);
    assert!(idle[0] < Duration::from_micros(500), "nothing is due, and it looked for {idle:?}");
    let hopeless = looks(true, 2000);
    assert!(hopeless[0] < Duration::from_micros(500), "answers take long, and it looked for {hopeless:?}");
}
