//! Hands an order and descriptors over to another process of this program, by a Unix socket that is
//! the process's descriptor 0.

use std::fs;
use std::io::{self, IoSlice, IoSliceMut, Read as _, Write as _, stdin};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Most descriptors of an order.
const MAX_DESCRIPTORS: usize = 8;
/// Longest order, in bytes. Linux takes arguments and an environment of up to 6 MiB.
const MAX_ORDER: u64 = 16 << 20;

/// The socket that is this process's descriptor 0. Closes all other descriptors but the outputs: a
/// caller may have left any of them open.
///
/// # Errors
/// This machine has no `/proc`, or descriptor 0 cannot be used.
pub(crate) fn inherited() -> io::Result<UnixStream> {
    let open: Vec<RawFd> = fs::read_dir("/proc/self/fd")?
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .collect();
    for descriptor in open.into_iter().filter(|descriptor| *descriptor > 2) {
        // One of them was the listing's own, which is closed already.
        let _ = nix::unistd::close(descriptor);
    }
    Ok(stdin().as_fd().try_clone_to_owned()?.into())
}

/// Sends an order with descriptors.
///
/// # Errors
/// The other process has ended.
pub(crate) fn send(
    mut socket: &UnixStream,
    order: &impl Serialize,
    descriptors: &[BorrowedFd<'_>],
) -> io::Result<()> {
    let order = serde_json::to_vec(order)?;
    let length = (order.len() as u64).to_ne_bytes();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    ancillary.push(SendAncillaryMessage::ScmRights(descriptors));
    sendmsg(socket, &[IoSlice::new(&length)], &mut ancillary, SendFlags::NOSIGNAL)?;
    socket.write_all(&order)
}

/// Receives an order and its descriptors, which no program inherits.
///
/// # Errors
/// The other process has ended.
pub(crate) fn receive<T: DeserializeOwned>(socket: &UnixStream) -> io::Result<(T, Vec<OwnedFd>)> {
    let mut length = [0; 8];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let received =
        recvmsg(socket, &mut [IoSliceMut::new(&mut length)], &mut ancillary, RecvFlags::CMSG_CLOEXEC)?;
    let length = u64::from_ne_bytes(length);
    if received.bytes < size_of_val(&length) || length > MAX_ORDER {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    let descriptors = ancillary.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(rights) => Some(rights),
        _ => None,
    });
    let descriptors = descriptors.flatten().collect();
    let mut order = Vec::new();
    socket.take(length).read_to_end(&mut order)?;
    Ok((serde_json::from_slice(&order)?, descriptors))
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::read_to_string;
    use std::os::fd::AsRawFd;
    use std::process::{Command, Stdio};
    use std::thread::spawn;

    use super::*;

    #[test]
    fn an_order_arrives_with_its_descriptors() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let order = "x".repeat(1 << 20);
        let expected = order.clone();
        let sender = spawn(move || send(&ours, &order, &[File::open("/dev/null").unwrap().as_fd()]));
        let (order, descriptors): (String, _) = receive(&theirs).unwrap();
        sender.join().unwrap().unwrap();
        assert!(order == expected);
        assert_eq!(descriptors.len(), 1);
        assert!(receive::<String>(&theirs).is_err(), "the other end is closed");
    }

    /// The test below, in a process of its own.
    const CHILD: &str = "handover::tests::a_first_process_lists_its_descriptors";

    #[test]
    #[ignore = "runs only as a child of the test below it"]
    fn a_first_process_lists_its_descriptors() {
        let socket = inherited().unwrap();
        let (order, received): (String, _) = receive(&socket).unwrap();
        let mut open: Vec<RawFd> = fs::read_dir("/proc/self/fd")
            .unwrap()
            .map(|entry| entry.unwrap().file_name().to_str().unwrap().parse().unwrap())
            .collect();
        // The listing's own descriptor is the lowest free one, and closed again.
        open.retain(|number| fs::read_link(format!("/proc/self/fd/{number}")).is_ok());
        let mut named = vec![0, 1, 2, socket.as_raw_fd()];
        named.extend(received.iter().map(AsRawFd::as_raw_fd));
        open.sort_unstable();
        named.sort_unstable();
        assert_eq!((order.as_str(), open), ("order", named));
    }

    #[test]
    fn a_first_process_has_only_the_descriptors_that_it_was_given() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        // The caller left folders of the machine open for every program.
        let mut child = Command::new("bash")
            .args(["-c", "exec 200</ 17</etc; exec \"$@\"", "bash"])
            .arg(std::env::current_exe().unwrap())
            .args([CHILD, "--exact", "--ignored", "--test-threads=1"])
            .stdin(OwnedFd::from(theirs))
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        send(&ours, &"order", &[File::open("/dev/null").unwrap().as_fd()]).unwrap();
        let output = read_to_string(child.stdout.take().unwrap()).unwrap();
        assert!(child.wait().unwrap().success() && output.contains("1 passed"), "{output}");
    }
}
