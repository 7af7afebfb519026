//! The Git source from outside: real repositories, the real controller, a host that takes messages.

#[path = "../../../control/tests/it/fixture.rs"]
#[expect(dead_code, reason = "shared with the tests of berth-control, which use all of it")]
mod fixture;
mod git;
