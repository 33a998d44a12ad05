//! MPA start-up: golden frames, and a transcript for each rule and error.

use godwit_iwarp::{
    Initiator, MAX_PRIVATE_DATA, Misuse, Negotiated, Reply, Request, Responder, Rtr, RtrKinds, StartupConfig, StartupError, TerminateCode,
};

use crate::support::{crc32c, fpdu};

const REQUEST: &[u8; 16] = b"MPA ID Req Frame";
const REPLY: &[u8; 16] = b"MPA ID Rep Frame";

fn frame(key: &[u8; 16], flags: u8, revision: u8, private_data: &[u8]) -> Vec<u8> {
    let length = u16::try_from(private_data.len()).expect("short");
    [&key[..], &[flags, revision], &length.to_be_bytes(), private_data].concat()
}

fn client() -> StartupConfig {
    StartupConfig { crc: false, ird: 16, ord: 8, peer_to_peer: None }
}

fn initiator(config: StartupConfig) -> Initiator {
    Initiator::new(config, b"hello").expect("valid parameters")
}

fn answer(config: StartupConfig, reply: &[u8]) -> Result<Reply, StartupError> {
    let (consumed, reply_read) = initiator(config).receive(reply)?;
    assert_eq!(consumed, reply.len());
    Ok(reply_read.expect("the Reply is whole"))
}

fn accepted(config: StartupConfig, reply: &[u8]) -> Negotiated {
    match answer(config, reply) {
        Ok(Reply::Accepted { parameters, .. }) => parameters,
        other => panic!("not accepted: {other:?}"),
    }
}

fn refused(config: StartupConfig, reply: &[u8]) -> (StartupError, Option<TerminateCode>) {
    let error = answer(config, reply).expect_err("must be refused");
    (error, error.terminate_code())
}

fn ask(bytes: &[u8]) -> (Responder, Result<Request, StartupError>) {
    let mut responder = Responder::new(false);
    let request = responder.receive(bytes).map(|(consumed, request)| {
        assert_eq!(consumed, bytes.len());
        request.expect("the Request is whole")
    });
    (responder, request)
}

#[test]
fn request_is_the_one_of_nvme_connect_over_siw() {
    let private_data = [0, 0, 0, 0, 32, 0, 31, 0].iter().copied().chain([0; 24]).collect::<Vec<u8>>();
    let config = StartupConfig { crc: false, ird: 128, ord: 0, peer_to_peer: None };
    let initiator = Initiator::new(config, &private_data).unwrap();
    let expected = [&b"MPA ID Req Frame\x10\x02\x00\x24\x00\x80\x00\x00"[..], &private_data].concat();
    assert_eq!(initiator.request(), expected);
}

#[test]
fn reply_is_the_one_of_nvmet_over_siw() {
    let (mut responder, request) = ask(&frame(REQUEST, 0x10, 2, &[0, 0x80, 0, 0, 7]));
    let request = request.unwrap();
    assert_eq!((request.peer_ird, request.peer_ord, request.enhanced, request.crc), (128, 0, true, false));
    assert_eq!(request.private_data, [7]);
    let (reply, negotiated) = responder.accept(0, 128, &[9; 32]).unwrap();
    assert_eq!(reply, [&b"MPA ID Rep Frame\x10\x02\x00\x24\x00\x00\x00\x80"[..], &[9; 32]].concat());
    assert_eq!(negotiated, Negotiated { crc: false, ird: 0, ord: 128, rtr: None });
}

#[test]
fn reject_is_the_one_that_nvme_hosts_expect() {
    let (mut responder, request) = ask(&frame(REQUEST, 0x10, 2, &[0, 0x80, 0, 0]));
    request.unwrap();
    assert_eq!(responder.reject(&[0, 0, 7, 0]).unwrap(), b"MPA ID Rep Frame\x30\x02\x00\x08\0\0\0\0\0\0\x07\0");
}

#[test]
fn frames_come_in_any_pieces_and_nothing_behind_them_is_consumed() {
    let request = frame(REQUEST, 0x10, 2, &[0, 1, 0, 2, 0xaa]);
    let mut responder = Responder::new(false);
    for byte in &request[..request.len() - 1] {
        assert_eq!(responder.receive(&[*byte]), Ok((1, None)));
    }
    assert_eq!(responder.receive(&[]), Ok((0, None)));
    let (consumed, whole) = responder.receive(&[0xaa, 1, 2, 3]).unwrap();
    assert_eq!((consumed, whole.unwrap().private_data), (1, vec![0xaa]));
    assert_eq!(responder.receive(&[1]), Err(StartupError::Over));

    let mut initiator = initiator(client());
    let reply = [frame(REPLY, 0x10, 2, &[0, 1, 0, 2]), vec![1, 2, 3]].concat();
    assert_eq!(initiator.receive(&reply[..21]), Ok((21, None)));
    let (consumed, whole) = initiator.receive(&reply[21..]).unwrap();
    assert_eq!((consumed, whole.is_some()), (3, true));
    assert_eq!(initiator.receive(&[1]), Err(StartupError::Over));
}

#[test]
fn wrong_key_is_refused_at_its_first_wrong_byte() {
    let key = StartupError::Key { expected: "MPA ID Req Frame" };
    assert_eq!(Responder::new(false).receive(b"GET / HTTP/1.1"), Err(key));
    assert_eq!(Responder::new(false).receive(b"MPA ID Rep"), Err(key));
    let (error, code) = refused(client(), &frame(REQUEST, 0x10, 2, &[0; 4]));
    assert_eq!((error, code), (StartupError::Key { expected: "MPA ID Rep Frame" }, Some(TerminateCode::MPA_FRAME)));
}

#[test]
fn terminate_of_an_initiator_is_one_fpdu_with_a_good_crc() {
    let (error, _) = refused(client(), &frame(REQUEST, 0x10, 2, &[0; 4]));
    let expected = fpdu(&[&[0x41, 0x47, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0, 0][..], &[0x20, 0x04, 0, 0]].concat());
    assert_eq!(error.terminate(), Some(expected.clone()));
    assert_eq!(expected[24..], crc32c(&expected[..24]));
    assert_eq!(StartupError::Over.terminate(), None);
}

#[test]
fn revisions_0_to_2_are_accepted_and_3_is_refused() {
    for revision in 0..=2 {
        let (_, request) = ask(&frame(REQUEST, 0, revision, b"data"));
        let request = request.unwrap();
        assert_eq!((request.revision, request.enhanced, request.private_data), (revision, false, b"data".to_vec()));
    }
    let (mut responder, request) = ask(&frame(REQUEST, 0, 3, b""));
    assert_eq!(request, Err(StartupError::Revision { revision: 3 }));
    assert_eq!(responder.reject(b""), Ok(Vec::new()));
    let (error, code) = refused(client(), &frame(REPLY, 0x10, 3, &[0; 4]));
    assert_eq!((error, code), (StartupError::Revision { revision: 3 }, Some(TerminateCode::MPA_FRAME)));
}

#[test]
fn enhanced_flag_means_nothing_before_revision_2() {
    let (mut responder, request) = ask(&frame(REQUEST, 0x10, 1, &[0, 1, 0, 2]));
    let request = request.unwrap();
    assert_eq!((request.enhanced, request.private_data), (false, vec![0, 1, 0, 2]));
    // A plain Reply: same revision, no S, no enhanced word; IRD and ORD are not negotiated.
    let (reply, negotiated) = responder.accept(3, 4, b"x").unwrap();
    assert_eq!(reply, frame(REPLY, 0, 1, b"x"));
    assert_eq!(negotiated, Negotiated { crc: false, ird: 3, ord: 4, rtr: None });
}

#[test]
fn plain_request_gets_a_plain_reject_and_revision_0_none() {
    let (mut responder, _) = ask(&frame(REQUEST, 0, 1, b""));
    assert_eq!(responder.reject(b"no").unwrap(), frame(REPLY, 0x20, 1, b"no"));
    let (mut responder, _) = ask(&frame(REQUEST, 0, 0, b""));
    assert_eq!(responder.reject(b"no").unwrap(), b"");
}

#[test]
fn private_data_is_bounded_on_the_wire_by_512() {
    assert!(ask(&frame(REQUEST, 0, 1, &[1; 512])).1.is_ok());
    let long = frame(REQUEST, 0, 1, &[1; 513]);
    let error = StartupError::PrivateDataLength { length: 513, least: 0 };
    assert_eq!(Responder::new(false).receive(&long), Err(error));
    assert_eq!(ask(&frame(REQUEST, 0x10, 2, &[0; 512])).1.unwrap().private_data.len(), 508);
    let (error, code) = refused(client(), &frame(REPLY, 0x10, 2, &[0; 513]));
    assert_eq!(error, StartupError::PrivateDataLength { length: 513, least: 4 });
    assert_eq!(code, Some(TerminateCode::MPA_FRAME));
}

#[test]
fn private_data_that_we_send_is_bounded_by_196() {
    let (fits, long) = ([1; MAX_PRIVATE_DATA], [1; MAX_PRIVATE_DATA + 1]);
    let error = Misuse::PrivateData { len: 197, most: 196 };
    assert_eq!(Initiator::new(client(), &fits).unwrap().request().len(), 20 + 4 + 196);
    assert_eq!(Initiator::new(client(), &long).unwrap_err(), error);
    let (mut responder, _) = ask(&frame(REQUEST, 0x10, 2, &[0; 4]));
    assert_eq!(responder.accept(1, 1, &long).unwrap_err(), error);
    assert_eq!(responder.reject(&long).unwrap_err(), error);
    assert_eq!(responder.accept(1, 1, &fits).unwrap().0.len(), 20 + 4 + 196);
}

#[test]
fn read_depths_are_bounded_by_128() {
    let error = Misuse::ReadDepth { value: 129, most: 128 };
    assert!(Initiator::new(StartupConfig { ird: 128, ord: 128, ..client() }, b"").is_ok());
    assert_eq!(Initiator::new(StartupConfig { ird: 129, ..client() }, b"").unwrap_err(), error);
    assert_eq!(Initiator::new(StartupConfig { ord: 129, ..client() }, b"").unwrap_err(), error);
    let (mut responder, _) = ask(&frame(REQUEST, 0x10, 2, &[0; 4]));
    assert_eq!(responder.accept(129, 0, b"").unwrap_err(), error);
    assert_eq!(responder.accept(0, 129, b"").unwrap_err(), error);
}

#[test]
fn nothing_is_accepted_before_a_request() {
    let mut responder = Responder::new(false);
    assert_eq!(responder.accept(1, 1, b"").unwrap_err(), Misuse::NoRequest);
    assert_eq!(responder.reject(b""), Ok(Vec::new()));
    let (mut responder, _) = ask(&frame(REQUEST, 0x10, 2, &[0; 4]));
    assert!(responder.accept(1, 1, b"").is_ok());
    assert_eq!(responder.accept(1, 1, b"").unwrap_err(), Misuse::NoRequest);
}

#[test]
fn enhanced_request_without_its_word_is_rejected() {
    for length in 0..4 {
        let (mut responder, request) = ask(&frame(REQUEST, 0x10, 2, &[0, 0, 0][..length.min(3)]));
        let short = u16::try_from(length).unwrap();
        assert_eq!(request, Err(StartupError::PrivateDataLength { length: short, least: 4 }));
        assert_eq!(responder.reject(b"").unwrap(), frame(REPLY, 0x30, 2, &[0; 4]));
    }
}

#[test]
fn enhanced_reply_without_its_word_is_refused() {
    let (error, code) = refused(client(), &frame(REPLY, 0x10, 2, &[0; 3]));
    assert_eq!(error, StartupError::PrivateDataLength { length: 3, least: 4 });
    assert_eq!(code, Some(TerminateCode::MPA_FRAME));
}

#[test]
fn markers_are_refused_in_both_directions() {
    let (mut responder, request) = ask(&frame(REQUEST, 0x90, 2, &[0; 4]));
    assert_eq!(request, Err(StartupError::Markers));
    assert_eq!(responder.reject(b"").unwrap(), frame(REPLY, 0x30, 2, &[0; 4]), "rejected with M cleared");
    let (error, code) = refused(client(), &frame(REPLY, 0x90, 2, &[0; 4]));
    assert_eq!((error, code), (StartupError::Markers, Some(TerminateCode::MPA_FRAME)));
}

#[test]
fn reserved_flags_are_ignored_and_not_echoed() {
    let (mut responder, request) = ask(&frame(REQUEST, 0x1f, 2, &[0; 4]));
    assert!(request.is_ok());
    assert_eq!(responder.accept(0, 0, b"").unwrap().0, frame(REPLY, 0x10, 2, &[0; 4]));
    assert!(answer(client(), &frame(REPLY, 0x1f, 2, &[0; 4])).is_ok());
}

#[test]
fn crc_is_used_when_either_side_asks() {
    let with_crc = StartupConfig { crc: true, ..client() };
    assert_eq!(initiator(with_crc).request()[16], 0x50);
    assert!(accepted(with_crc, &frame(REPLY, 0x10, 2, &[0; 4])).crc);
    assert!(accepted(client(), &frame(REPLY, 0x50, 2, &[0; 4])).crc);
    assert!(!accepted(client(), &frame(REPLY, 0x10, 2, &[0; 4])).crc);

    for (ours, theirs, flags) in [(false, 0x10, 0x10), (false, 0x50, 0x50), (true, 0x10, 0x50), (true, 0x50, 0x50)] {
        let mut responder = Responder::new(ours);
        responder.receive(&frame(REQUEST, theirs, 2, &[0; 4])).unwrap();
        let (reply, negotiated) = responder.accept(0, 0, b"").unwrap();
        assert_eq!((reply[16], negotiated.crc), (flags, flags == 0x50));
    }
}

#[test]
fn rejection_hands_over_the_private_data() {
    let rejected = answer(client(), &frame(REPLY, 0x30, 2, &[0, 0, 0, 3, 0, 0, 7, 0]));
    assert_eq!(rejected, Ok(Reply::Rejected { private_data: vec![0, 0, 7, 0] }));
    let plain = answer(client(), &frame(REPLY, 0x20, 1, b"no"));
    assert_eq!(plain, Ok(Reply::Rejected { private_data: b"no".to_vec() }));
}

#[test]
fn reply_without_enhanced_set_up_is_refused() {
    for (flags, revision) in [(0, 2), (0x10, 1), (0, 1), (0, 0)] {
        let (error, code) = refused(client(), &frame(REPLY, flags, revision, &[0; 4]));
        assert_eq!((error, code), (StartupError::NotEnhanced { revision }, Some(TerminateCode::MPA_FRAME)));
    }
}

#[test]
fn initiator_lowers_its_ord_to_the_replys_ird() {
    let negotiated = accepted(client(), &frame(REPLY, 0x10, 2, &[0, 3, 0, 16]));
    assert_eq!((negotiated.ord, negotiated.ird), (3, 16));
    let negotiated = accepted(client(), &frame(REPLY, 0x10, 2, &[0x3f, 0xff, 0, 1]));
    assert_eq!((negotiated.ord, negotiated.ird), (8, 16));
}

#[test]
fn initiator_refuses_an_ord_over_the_ird_that_it_offered() {
    let (error, code) = refused(client(), &frame(REPLY, 0x10, 2, &[0, 0, 0, 17]));
    assert_eq!(error, StartupError::InsufficientIrd { ord: 17, ird: 16 });
    assert_eq!(code, Some(TerminateCode::MPA_INSUFFICIENT_IRD));
    assert_eq!(refused(client(), &frame(REPLY, 0x10, 2, &[0, 0, 0x3f, 0xff])).1, code);
}

#[test]
fn responder_lowers_ord_and_raises_ird() {
    let depths = |word: &[u8; 4], ird, ord| {
        let (mut responder, _) = ask(&frame(REQUEST, 0x10, 2, word));
        let (reply, negotiated) = responder.accept(ird, ord, b"").unwrap();
        (<[u8; 4]>::try_from(&reply[20..]).unwrap(), negotiated.ird, negotiated.ord)
    };
    assert_eq!(depths(&[0, 5, 0, 9], 2, 64), ([0, 9, 0, 5], 9, 5));
    assert_eq!(depths(&[0, 5, 0, 1], 2, 4), ([0, 2, 0, 4], 2, 4));
    assert_eq!(depths(&[0, 0, 1, 0], 2, 4), ([0, 128, 0, 0], 128, 0), "256 wanted, 128 is the limit");
    assert_eq!(depths(&[0x3f, 0xff, 0x3f, 0xff], 2, 4), ([0x3f, 0xff, 0x3f, 0xff], 2, 4), "not negotiated");
}

#[test]
fn responder_answers_the_cheapest_rtr_that_is_offered() {
    let chosen = |word: &[u8; 4]| {
        let (mut responder, request) = ask(&frame(REQUEST, 0x10, 2, word));
        assert!(request.unwrap().peer_to_peer);
        let (reply, negotiated) = responder.accept(0, 0, b"").unwrap();
        (<[u8; 4]>::try_from(&reply[20..]).unwrap(), negotiated.ird, negotiated.rtr)
    };
    assert_eq!(chosen(&[0xc0, 0, 0xc0, 0]), ([0x80, 0, 0x80, 0], 0, Some(Rtr::Write)));
    assert_eq!(chosen(&[0xc0, 0, 0x40, 0]), ([0x80, 1, 0x40, 0], 1, Some(Rtr::Read)), "a Read takes one IRD");
    assert_eq!(chosen(&[0xc0, 0, 0, 0]), ([0xc0, 0, 0, 0], 0, Some(Rtr::Send)));
    assert_eq!(chosen(&[0x80, 0, 0, 0]), ([0x80, 0, 0x80, 0], 0, Some(Rtr::Write)), "nothing offered");
}

#[test]
fn rtr_bits_mean_nothing_in_the_client_server_model() {
    let (mut responder, request) = ask(&frame(REQUEST, 0x10, 2, &[0x40, 0, 0xc0, 0]));
    assert!(!request.unwrap().peer_to_peer);
    let (reply, negotiated) = responder.accept(0, 0, b"").unwrap();
    assert_eq!((&reply[20..], negotiated.rtr), (&[0, 0, 0, 0][..], None));
    assert_eq!(accepted(client(), &frame(REPLY, 0x10, 2, &[0x40, 0, 0xc0, 0])).rtr, None);
}

#[test]
fn initiator_offers_its_rtr_kinds_and_uses_a_common_one() {
    let all = RtrKinds { write: true, read: true, send: true };
    let peer = |kinds| StartupConfig { peer_to_peer: Some(kinds), ..client() };
    assert_eq!(initiator(peer(all)).request()[20..24], [0xc0, 16, 0xc0, 8]);
    let only_read = RtrKinds { write: false, send: false, ..all };
    assert_eq!(initiator(peer(only_read)).request()[20..24], [0x80, 16, 0x40, 8]);

    let rtr = |kinds, word: &[u8; 4]| accepted(peer(kinds), &frame(REPLY, 0x10, 2, word)).rtr;
    assert_eq!(rtr(all, &[0x80, 0, 0x80, 0]), Some(Rtr::Write));
    assert_eq!(rtr(all, &[0x80, 1, 0x40, 0]), Some(Rtr::Read));
    assert_eq!(rtr(all, &[0xc0, 0, 0, 0]), Some(Rtr::Send));
    assert_eq!(rtr(only_read, &[0xc0, 1, 0xc0, 0]), Some(Rtr::Read));
    assert_eq!(rtr(all, &[0, 0, 0, 0]), None, "the Responder keeps to the client-server model");
}

#[test]
fn initiator_refuses_an_rtr_that_it_did_not_offer() {
    let only_write = RtrKinds { write: true, ..RtrKinds::default() };
    let peer = StartupConfig { peer_to_peer: Some(only_write), ..client() };
    for (config, word) in [(peer, [0x80, 0, 0x40, 0]), (peer, [0x80, 0, 0, 0]), (client(), [0x80, 0, 0x80, 0])] {
        let (error, code) = refused(config, &frame(REPLY, 0x10, 2, &word));
        assert_eq!((error, code), (StartupError::NoMatchingRtr, Some(TerminateCode::MPA_NO_MATCHING_RTR)));
    }
}

#[test]
fn errors_are_one_readable_line() {
    let (error, _) = refused(client(), &frame(REPLY, 0x10, 2, &[0, 0, 0, 17]));
    assert_eq!(error.to_string(), "the peer's ORD of 17 exceeds our IRD of 16");
    let error = Responder::new(false).receive(b"GET").unwrap_err();
    assert_eq!(error.to_string(), "the peer does not speak MPA: no \"MPA ID Req Frame\" at the start");
}
