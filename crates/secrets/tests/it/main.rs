//! Files and their keys with real cryptography; Vault's brain under a clock of its own, and its driver against a server.

mod brain;
mod fake;
mod files;
mod fixture;
mod keys;
mod mutations;
mod server;
