//! The loopback interface of a new network, which begins without one: libraries talk to their own helpers over it.

use std::io;

use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink::SocketAddrNetlink, recv, sendto, socket_with,
};

/// `RTM_NEWLINK` with `IFF_UP` for interface 1, as rtnetlink(7) lays it out.
fn request() -> [u8; 32] {
    let mut message = [0; 32];
    message[..4].copy_from_slice(&32_u32.to_ne_bytes());
    message[4..6].copy_from_slice(&16_u16.to_ne_bytes());
    // Request, with an acknowledgement.
    message[6..8].copy_from_slice(&5_u16.to_ne_bytes());
    message[20..24].copy_from_slice(&1_i32.to_ne_bytes());
    message[24..28].copy_from_slice(&1_u32.to_ne_bytes());
    message[28..].copy_from_slice(&1_u32.to_ne_bytes());
    message
}

/// Turns on the loopback of the network namespace that the thread is in.
pub(crate) fn up() -> io::Result<()> {
    // The protocol that is meant where none is said is routing.
    let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, None)?;
    sendto(&socket, &request(), SendFlags::empty(), &SocketAddrNetlink::new(0, 0))?;
    let mut answer = [0_u8; 256];
    let (_, read) = recv(&socket, &mut answer[..], RecvFlags::empty())?;
    let code = answer.get(16..20).filter(|_| read >= 20).and_then(|code| code.try_into().ok()).map(i32::from_ne_bytes);
    match code {
        Some(0) => Ok(()),
        Some(code) => Err(io::Error::from_raw_os_error(-code)),
        None => Err(io::ErrorKind::InvalidData.into()),
    }
}
