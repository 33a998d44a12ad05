//! Which side is ours, how it reaches RDMA, and what RDMA it is: a case for each combination.

use godwit_tests::lab::rdma::Device;
use godwit_tests::lab::{Guest, Kernel, in_guest};

use crate::cells::{Provider, linux_host, linux_target, ours, smoke_of_linux_host, smoke_of_linux_target};

fn siw() -> Guest {
    Guest::with(Device::Siw).shared()
}

fn rxe() -> Guest {
    Guest::with(Device::Rxe).shared()
}

#[test]
#[ignore = "needs root and QEMU: make lab"]
fn linux_host_on_siw_uses_our_iwarp_target() {
    in_guest(&siw(), || linux_host(Provider::Iwarp));
}

#[test]
#[ignore = "needs root and QEMU: make lab"]
fn our_iwarp_initiator_uses_linux_target_on_siw() {
    in_guest(&siw(), || linux_target(Provider::Iwarp));
}

#[test]
#[ignore = "needs root and QEMU: make lab"]
fn linux_6_1_host_on_siw_uses_our_iwarp_target() {
    in_guest(&siw().kernel(Kernel::Linux6_1), || smoke_of_linux_host(Provider::Iwarp));
}

#[test]
#[ignore = "needs root and QEMU: make lab"]
fn our_iwarp_initiator_uses_linux_6_1_target_on_siw() {
    in_guest(&siw().kernel(Kernel::Linux6_1), || smoke_of_linux_target(Provider::Iwarp));
}

#[test]
#[ignore = "needs root and QEMU: make lab"]
fn linux_host_on_rxe_uses_our_rdma_target() {
    in_guest(&rxe(), || linux_host(Provider::Rdma));
}

#[test]
#[ignore = "needs root and QEMU: make lab"]
fn linux_6_1_host_on_rxe_uses_our_rdma_target() {
    in_guest(&rxe().kernel(Kernel::Linux6_1), || smoke_of_linux_host(Provider::Rdma));
}

#[test]
#[ignore = "needs root and QEMU: make lab"]
fn linux_host_on_siw_uses_our_rdma_target() {
    in_guest(&siw(), || linux_host(Provider::Rdma));
}

#[test]
#[ignore = "needs root and QEMU: make lab"]
fn our_rdma_initiator_uses_linux_target_on_rxe() {
    in_guest(&rxe(), || linux_target(Provider::Rdma));
}

#[test]
#[ignore = "needs root and QEMU: make lab"]
fn our_rdma_initiator_uses_linux_target_on_siw() {
    in_guest(&siw(), || linux_target(Provider::Rdma));
}

#[test]
#[ignore = "needs root and QEMU: make lab"]
fn our_rdma_initiator_uses_our_rdma_target_on_rxe() {
    in_guest(&rxe(), || ours(Provider::Rdma, Provider::Rdma));
}

#[test]
#[ignore = "needs root and QEMU: make lab"]
fn our_iwarp_initiator_uses_our_rdma_target_on_siw() {
    in_guest(&siw(), || ours(Provider::Rdma, Provider::Iwarp));
}

#[test]
#[ignore = "needs root and QEMU: make lab"]
fn our_rdma_initiator_uses_our_iwarp_target_on_siw() {
    in_guest(&siw(), || ours(Provider::Iwarp, Provider::Rdma));
}
