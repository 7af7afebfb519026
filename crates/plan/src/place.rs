//! Where replicas go, and who leaves for them. `place/README.md` states the problem before the algorithm.

mod filter;
mod score;

pub use filter::Rejection;
pub use score::Score;
