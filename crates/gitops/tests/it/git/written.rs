//! The actual state across leaders.

use std::{sync::Arc, time::Duration};

use berth_control::{source::SourceState, store::memory::MemoryStore};
use berth_spec::{
    FromController, Residency, Time,
    residency::{Failure, FailureCategory},
};

use super::{
    OWN,
    forge::{Followed, Forge, python_worker},
    own, until,
};
use crate::fixture::{Running, empty_inventory, inventory};

#[tokio::test(start_paused = true)]
async fn an_error_file_stays_though_the_next_leader_cannot_read_the_branch_at_first() {
    let forge = Forge::new();
    forge.deploy("doubler", "v1.0.0", "");
    let good = forge.push("Deploy doubler");
    let store = Arc::new(MemoryStore::default());
    let running = Running::start(store.clone());
    let info = python_worker("worker-a");
    let (reports, mut words) = running.handle.attach_worker(info.clone()).await.expect("attached");
    reports.send(empty_inventory(&info)).await.expect("reported");
    let followed = Followed::start(forge.config("disk", own()), &running.handle, 1);
    followed.until_applied(&good).await;
    let revision = loop {
        if let FromController::Assigned(change) = words.recv().await.expect("open")
            && let Some(placed) = change.set.first()
        {
            break placed.revision.id.clone();
        }
    };
    let failure = Failure {
        category: FailureCategory::Code,
        message: "it raised".to_owned(),
        attempts: 1,
        at: Time(1),
        retry_at: None,
        trace: None,
        history: Vec::new(),
        needs: None,
    };
    let failed = (revision, Some(Residency::Failed(Arc::new(failure))));
    reports.send(inventory(&info, false, vec![failed])).await.expect("reported");
    let errors = || match forge.ask(&["branch", "--list", OWN]).is_empty() {
        true => String::new(),
        false => forge.ask(&["ls-tree", "-r", "--name-only", OWN, "errors/"]),
    };
    until("an error file", || errors().contains("load-failure")).await;
    followed.stop().await;
    running.stop().await;

    // The worker is not there any more, so that nobody says whether it is over.
    let (bare, away) = (forge.path("registry.git"), forge.path("away"));
    fs_err::rename(&bare, &away).expect("moved");
    let running = Running::start(store);
    let followed = Followed::start(forge.config("disk", own()), &running.handle, 2);
    followed.until("it cannot be read", |view| !view.detail("writeProblem").is_empty()).await;
    fs_err::rename(&away, &bare).expect("back");
    followed.until("it can", |view| view.detail("writeProblem").is_empty() && view.state == SourceState::Synced).await;
    tokio::time::sleep(Duration::from_secs(3_600)).await;
    let told = forge.ask(&["log", "--format=%B", OWN]);
    assert!(errors().contains("load-failure") && !told.contains("resolved"), "{told}");
    followed.stop().await;
    running.stop().await;
}
