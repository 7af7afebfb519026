//! Files and their keys with real cryptography.

mod files;
mod fixture;
mod keys;
mod mutations;
