//! Code of others in a process that the kernel confines: what it sees of the disk and of the network, which system calls
//! it may make, how much it may take.
//!
//! ```text
//! worker ── Launcher::command ──▶ berth --sandbox JSON -- python …
//!                                   │ joins control groups, leaves the namespaces of the worker       [`launch`]
//!                                   └─▶ init of the process namespace: makes the file tree            [`root`]
//!                                         └─▶ user, limits, Landlock, system calls ── exec ──▶ python [`confine`]
//! ```
//! The launcher is the program `berth` itself, started anew: between fork and exec of a process with threads next to nothing may
//! be done, and in a fresh process with one thread everything. [`Launcher::find`] tries once what this machine allows; what is
//! missing is told by the caller, never silently. Not here: control groups are made by the caller, and are only joined.
//!
//! A program that others confine, or nobody, gets a network of its own by [`OwnNetwork`], and no more.

mod confine;
mod files;
mod launch;
mod launcher;
mod loopback;
mod mounts;
mod namespaces;
mod own_network;
mod passing;
mod root;
mod spec;
mod syscalls;
mod users;

pub use self::{
    launch::{Own, entered},
    launcher::Launcher,
    own_network::OwnNetwork,
    passing::{receive, receive_folder},
    spec::{Isolation, Limits, Mechanisms, Network, Sandbox, Storage},
    users::{User, Users, is_open},
};

/// The first argument of the program when it is started as a launcher.
pub const FLAG: &str = "--sandbox";
