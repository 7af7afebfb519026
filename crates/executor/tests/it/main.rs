//! An executor before servers of this process, over real connections.

mod fixture;
mod requests;
mod serving;
