//! Files that a sandbox hands to whoever started it: the listener of its own network, whose connections come from inside and are answered
//! outside, and its own folder, where that is in memory.

use std::{
    io::{self, IoSlice, IoSliceMut},
    mem::MaybeUninit,
    net::{Ipv4Addr, TcpListener},
    os::{
        fd::{AsFd, OwnedFd},
        unix::net::UnixStream,
    },
};

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};

/// The byte that a listener goes with.
const LISTENER: u8 = b'L';

/// The byte that a folder goes with.
const FOLDER: u8 = b'F';

/// Listens on the loopback of this network, and sends the listener over standard input, which is a socket.
pub(crate) fn send_listener(port: u16) -> io::Result<()> {
    send(LISTENER, &TcpListener::bind((Ipv4Addr::LOCALHOST, port))?)
}

/// Sends an open folder over standard input, which is a socket.
pub(crate) fn send_folder(folder: &OwnedFd) -> io::Result<()> {
    send(FOLDER, folder)
}

fn send(mark: u8, file: &impl AsFd) -> io::Result<()> {
    let files = [file.as_fd()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut with = SendAncillaryBuffer::new(&mut space);
    if !with.push(SendAncillaryMessage::ScmRights(&files)) {
        return Err(io::Error::other("no room for a file"));
    }
    sendmsg(io::stdin(), &[IoSlice::new(&[mark])], &mut with, SendFlags::NOSIGNAL)?;
    Ok(())
}

/// Takes the listener that a process sends before anything else.
///
/// # Errors
/// If the process ended, or nothing comes within the read timeout of `from`.
pub fn receive(from: &UnixStream) -> io::Result<TcpListener> {
    take(LISTENER, from).map(TcpListener::from)
}

/// Takes the folder in memory that a process sends, after a listener if it sends one. It lives for as long as this is open.
///
/// # Errors
/// If the process ended, or nothing comes within the read timeout of `from`.
pub fn receive_folder(from: &UnixStream) -> io::Result<OwnedFd> {
    take(FOLDER, from)
}

fn take(expected: u8, from: &UnixStream) -> io::Result<OwnedFd> {
    let mut mark = [0];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut with = RecvAncillaryBuffer::new(&mut space);
    let received = recvmsg(from, &mut [IoSliceMut::new(&mut mark)], &mut with, RecvFlags::CMSG_CLOEXEC)?;
    let file = with.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut files) => files.next(),
        _ => None,
    });
    match file {
        Some(file) if mark == [expected] && !received.flags.contains(ReturnFlags::CTRUNC) => Ok(file),
        _ => Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the process ended before it sent what it should")),
    }
}
