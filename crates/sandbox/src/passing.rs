//! A listener of a network of its own, handed to whoever started the process: connections to it come from inside of the sandbox,
//! and are answered outside of it.

use std::{
    io::{self, IoSlice, IoSliceMut},
    mem::MaybeUninit,
    net::{Ipv4Addr, TcpListener},
    os::{fd::AsFd as _, unix::net::UnixStream},
};

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};

/// The byte that the listener goes with.
const MARK: u8 = b'L';

/// Listens on the loopback of this network, and sends the listener over standard input, which is a socket.
pub(crate) fn send(port: u16) -> io::Result<()> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port))?;
    let files = [listener.as_fd()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut with = SendAncillaryBuffer::new(&mut space);
    if !with.push(SendAncillaryMessage::ScmRights(&files)) {
        return Err(io::Error::other("no room for a file"));
    }
    sendmsg(io::stdin(), &[IoSlice::new(&[MARK])], &mut with, SendFlags::NOSIGNAL)?;
    Ok(())
}

/// Takes the listener that a process sends before anything else.
///
/// # Errors
/// If the process ended, or nothing comes within the read timeout of `from`.
pub fn receive(from: &UnixStream) -> io::Result<TcpListener> {
    let mut mark = [0];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut with = RecvAncillaryBuffer::new(&mut space);
    let received = recvmsg(from, &mut [IoSliceMut::new(&mut mark)], &mut with, RecvFlags::CMSG_CLOEXEC)?;
    let file = with.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut files) => files.next(),
        _ => None,
    });
    match file {
        Some(file) if mark == [MARK] && !received.flags.contains(ReturnFlags::CTRUNC) => Ok(TcpListener::from(file)),
        _ => Err(io::Error::new(io::ErrorKind::UnexpectedEof, "no listener came")),
    }
}
