//! Both daemons' engines over a simulated network, clock and disk. A failure names its seed: `GODWIT_SEED=n` runs that one alone, with its log.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use godwit_initiator::host::{LossTimeout, Uncounted};
use godwit_reactor::sim::Random;
use godwit_tests::simulation::faults::Fault;
use godwit_tests::simulation::{Journal, Options, QUICK, Simulation, Tally};

/// The target's line about a Connect that it answers with 181h.
const REFUSED_AS_BUSY: &str = "Connect refused: commands of the host's previous association are still running";

/// The seeds to run: `GODWIT_SEED`, or the first so many.
fn seeds(count: u64) -> Vec<u64> {
    match number("GODWIT_SEED") {
        Some(seed) => vec![seed],
        None => (0..count).collect(),
    }
}

fn number(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{variable} is to be a number, and is {text:?}")))
}

/// Runs each seed; in the end, fails with the names of those that failed.
fn each(seeds: &[u64], run: impl Fn(u64) -> Tally) -> (Vec<Tally>, usize) {
    let (mut tallies, mut failed, mut busy) = (Vec::new(), Vec::new(), 0);
    for &seed in seeds {
        let journal = Journal::default();
        match catch_unwind(AssertUnwindSafe(|| journal.of(|| run(seed)))) {
            Ok(tally) => tallies.push(tally),
            Err(_) => failed.push(seed),
        }
        if seeds.len() == 1 {
            eprintln!("{}", journal.text());
        }
        busy += journal.count(REFUSED_AS_BUSY);
    }
    assert!(failed.is_empty(), "{} of {} seeds failed: {failed:?}; run one of them with GODWIT_SEED", failed.len(), seeds.len());
    (tallies, busy)
}

/// A run with so many faults.
fn run(seed: u64, faults: u64) -> Tally {
    let options = Options::draw(&mut Random::new(seed));
    let mut simulation = Simulation::start(seed, &options);
    let mut random = Random::new(!seed);
    for _ in 0..faults {
        simulation.run_for(Duration::from_millis(random.below(300)));
        let fault = simulation.draw_fault();
        simulation.suffer(fault);
    }
    simulation.finish()
}

fn sum(tallies: &[Tally], of: impl Fn(&Tally) -> u64) -> u64 {
    tallies.iter().map(of).sum()
}

#[test]
fn every_promise_holds_whatever_happens_to_network_target_and_disk() {
    let seeds = seeds(200);
    let (tallies, busy) = each(&seeds, |seed| run(seed, 6));
    let of = |of: fn(&Tally) -> u64| sum(&tallies, of);
    let (succeeded, lost, restored, cuts) =
        (of(|tally| tally.succeeded), of(|tally| tally.lost), of(|tally| tally.restored), of(|tally| tally.cuts));
    println!("{succeeded} operations, {lost} losses, {restored} returns, {cuts} power cuts, {busy} Connects refused as busy");
    if seeds.len() > 1 {
        assert!(succeeded > 50_000 && lost > 400 && cuts > 50 && busy > 100, "the runs are too tame");
    }
    assert_eq!(lost, restored, "the target comes back each time");
}

/// The target does not count its power cuts here, so each of its returns is taken for one.
fn fails_over_losses(seed: u64, retain_bytes: usize) -> Tally {
    let drawn = Options::draw(&mut Random::new(seed));
    let options = Options { uncounted: Uncounted::Fail, retain_bytes, scarce_buffers: drawn.scarce_buffers && retain_bytes == 0, ..drawn };
    let mut simulation = Simulation::start(seed, &options);
    let mut random = Random::new(!seed);
    for round in 0..6 {
        simulation.run_for(Duration::from_millis(random.below(300)));
        let fault = if round % 2 == 0 { Fault::PowerCut } else { simulation.draw_fault() };
        simulation.suffer(fault);
    }
    simulation.finish()
}

#[test]
fn no_flush_succeeds_over_writes_that_a_power_cut_has_taken() {
    let seeds = seeds(100);
    let (tallies, _) = each(&seeds, |seed| fails_over_losses(seed, 0));
    let (told, cuts) = (sum(&tallies, |tally| tally.told), sum(&tallies, |tally| tally.cuts));
    println!("{cuts} power cuts, {told} flushes and forced writes failed for them");
    assert!(seeds.len() == 1 || (told > 200 && cuts >= 300), "the runs are too tame");
}

#[test]
fn what_a_power_cut_has_taken_is_written_again_from_copies_in_the_order_in_which_it_was_acknowledged() {
    let seeds = seeds(100);
    let (tallies, _) = each(&seeds, |seed| fails_over_losses(seed, 300 << 10));
    let (restorations, cuts) = (sum(&tallies, |tally| tally.restorations), sum(&tallies, |tally| tally.cuts));
    println!("{cuts} power cuts, {restorations} times copies were written again");
    assert!(seeds.len() == 1 || restorations > 200, "the runs are too tame");
}

#[test]
fn the_same_seed_gives_the_same_run() {
    assert_eq!(run(5, 6), run(5, 6));
    assert_ne!(run(5, 6), run(6, 6));
}

#[test]
fn a_write_that_the_network_held_back_never_lands_after_a_newer_one() {
    each(&seeds(60), |seed| {
        let (io_timeout, keep_alive) = (Duration::from_secs(2), Duration::from_secs(15));
        let options = Options {
            blocks: 6,
            io_timeout,
            abort_timeout: Duration::ZERO,
            keep_alive,
            scarce_buffers: false,
            ..Options::draw(&mut Random::new(seed))
        };
        let mut simulation = Simulation::start(seed, &options);
        let mut random = Random::new(!seed);
        for _ in 0..3 {
            simulation.run_for(Duration::from_millis(200 + random.below(200)));
            simulation.silence(Duration::from_millis(4000 + random.below(5000)));
            // The user goes on as soon as it can, while what was sent before is still on its way.
            simulation.run_for(Duration::from_secs(2));
            simulation.rest(true);
            simulation.run_for(Duration::from_secs(40));
            simulation.rest(false);
        }
        simulation.finish()
    });
}

#[test]
fn keep_alive_holds_across_long_idle_times_and_disk_stalls() {
    each(&seeds(20), |seed| {
        let options = Options { io_timeout: Duration::from_secs(60), ..Options::draw(&mut Random::new(seed)) };
        let mut simulation = Simulation::start(seed, &options);
        simulation.run_for(Duration::from_secs(2));
        simulation.rest(true);
        simulation.run_for(Duration::from_secs(600));
        simulation.rest(false);
        simulation.slow_disk(Duration::from_secs(30));
        simulation.run_for(Duration::from_secs(35));
        simulation.slow_disk(QUICK);
        let tally = simulation.finish();
        assert_eq!(tally.lost, 0, "the target was lost");
        tally
    });
}

#[test]
fn a_volume_that_is_given_up_ends_every_operation_with_an_error() {
    let after = Duration::from_secs(20);
    each(&seeds(20), |seed| {
        let options = Options { loss_timeout: LossTimeout::After(after), ..Options::draw(&mut Random::new(seed)) };
        let mut simulation = Simulation::start(seed, &options);
        simulation.run_for(Duration::from_secs(1));
        if seed % 2 == 0 {
            simulation.end_target();
        } else {
            simulation.slow_disk(Duration::from_secs(25));
            simulation.run_for(Duration::from_millis(100));
            simulation.silence(Duration::from_secs(60));
        }
        simulation.run_until("the volume is given up", Simulation::is_given_up);
        // What is submitted from now on fails, too.
        simulation.rest(false);
        simulation.run_for(Duration::from_secs(1));
        simulation.finish_operations();
        simulation.check_buffers();
        let tally = simulation.tally();
        assert!(tally.gone > 0);
        tally
    });
}

#[test]
#[ignore = "a soak of minutes: GODWIT_SEEDS says how many seeds, 2000 otherwise"]
fn soak() {
    let seeds = seeds(number("GODWIT_SEEDS").unwrap_or(2000));
    let (tallies, busy) = each(&seeds, |seed| run(seed ^ 0x50AC << 32, 30));
    println!("{} operations, {busy} Connects refused as busy", sum(&tallies, |tally| tally.succeeded));
}
