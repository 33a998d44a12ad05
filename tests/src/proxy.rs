//! A TCP relay between initiator and target whose connections a test can cut, freeze or slow down, one by one.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

/// The relay. It ends with the process.
#[derive(Debug)]
pub struct Proxy {
    /// Where it listens.
    pub address: SocketAddr,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    connections: Mutex<Vec<[TcpStream; 2]>>,
    /// Nothing passes in either direction, and nobody is told.
    frozen: AtomicBool,
    /// New connections are closed at once.
    refusing: AtomicBool,
}

impl Proxy {
    /// Relays a free port of 127.0.0.1 to `target`.
    ///
    /// # Panics
    ///
    /// When there is no port.
    pub fn start(target: SocketAddr) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
        let address = listener.local_addr().expect("its address");
        let shared = Arc::new(Shared { connections: Mutex::default(), frozen: AtomicBool::new(false), refusing: AtomicBool::new(false) });
        let accepting = Arc::clone(&shared);
        thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                if !accepting.refusing.load(Ordering::SeqCst) {
                    let _ = relay(&accepting, client, target);
                }
            }
        });
        Self { address, shared }
    }

    /// How many connections were made so far.
    ///
    /// # Panics
    ///
    /// Never in practice.
    pub fn connections(&self) -> usize {
        self.shared.connections.lock().expect("no holder panics").len()
    }

    /// Cuts a connection, counted from 0 in the order in which they were made.
    ///
    /// # Panics
    ///
    /// When there is no such connection.
    pub fn cut(&self, index: usize) {
        for stream in &self.shared.connections.lock().expect("no holder panics")[index] {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    /// Stops (or resumes) all traffic without telling anyone. Nothing is lost: as a network that drops packets does, it arrives later.
    pub fn freeze(&self, frozen: bool) {
        self.shared.frozen.store(frozen, Ordering::SeqCst);
    }

    /// Refuses (or admits) new connections.
    pub fn refuse(&self, refusing: bool) {
        self.shared.refusing.store(refusing, Ordering::SeqCst);
    }
}

fn relay(shared: &Arc<Shared>, client: TcpStream, target: SocketAddr) -> io::Result<()> {
    let server = TcpStream::connect(target)?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let ends = [client.try_clone()?, server.try_clone()?];
    shared.connections.lock().expect("no holder panics").push(ends);
    for (from, to) in [(client.try_clone()?, server.try_clone()?), (server, client)] {
        let shared = Arc::clone(shared);
        thread::spawn(move || {
            let _ = copy(&shared, &from, &to);
            let _ = to.shutdown(Shutdown::Write);
        });
    }
    Ok(())
}

fn copy(shared: &Shared, mut from: &TcpStream, mut to: &TcpStream) -> io::Result<()> {
    let mut chunk = vec![0; 64 << 10];
    loop {
        let count = from.read(&mut chunk)?;
        if count == 0 {
            return Ok(());
        }
        while shared.frozen.load(Ordering::SeqCst) {
            thread::sleep(Duration::from_millis(5));
        }
        to.write_all(&chunk[..count])?;
    }
}
