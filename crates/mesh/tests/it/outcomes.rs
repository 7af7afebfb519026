//! The results of requests by revision, as the controller and Prometheus hear of them.

use berth_spec::{GatewayEvent, RevisionOutcomes};
use prometheus_client::encoding::text::encode;

use crate::{
    cluster::nodes::TestCluster,
    fixture::{Echo, TestGateway, revision},
};

const FAILING_REQUEST: &str = r#"{"inputs":[{"name":"fail","datatype":"FP32","shape":[1,4],"data":[1,2,3,4]}]}"#;

async fn outcomes(gateway: &mut TestGateway) -> Vec<RevisionOutcomes> {
    loop {
        if let GatewayEvent::Outcomes(outcomes) = gateway.event().await {
            return outcomes;
        }
    }
}

#[tokio::test]
async fn results_are_told_by_the_revision_that_answered_here_or_elsewhere() {
    let mut cluster = TestCluster::new(&["a", "b"]).await;
    let echo = Echo::open();
    cluster.serve("iris", &[("b", &echo)]).await;
    for node in ["a", "b"] {
        let gateway = cluster.gateway(node);
        let mut sum = RevisionOutcomes::none(revision("iris", "1"));
        for _ in 0..3 {
            assert_eq!(gateway.infer("iris", &[]).await.status, 200);
        }
        assert_eq!(gateway.post("/v2/models/iris/infer", FAILING_REQUEST).await.status, 500);
        // What is told at one tick may be a part of it.
        while sum.requests() < 4 {
            for one in outcomes(gateway).await {
                sum.add(&one);
            }
        }
        assert_eq!((sum.ok, sum.client_errors, sum.server_errors), (3, 0, 1), "{node}");
        assert_eq!(sum.latency.iter().sum::<u64>(), 4, "{node}");
        let mut text = String::new();
        encode(&mut text, &gateway.registry).expect("a String takes everything");
        let hash = revision("iris", "1").hash();
        for line in [
            format!(
                r#"berth_gateway_revision_requests_total{{namespace="default",deployment="iris",revision="{hash}",result="ok"}} 3"#
            ),
            format!(
                r#"berth_gateway_revision_seconds_count{{namespace="default",deployment="iris",revision="{hash}"}} 4"#
            ),
            format!(
                r#"berth_gateway_revision_seconds_bucket{{le="+Inf",namespace="default",deployment="iris",revision="{hash}"}} 4"#
            ),
        ] {
            assert!(text.lines().any(|told| told == line), "{line} is not in\n{text}");
        }
    }
}
