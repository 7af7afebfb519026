"""Every metric and every event that docs/observability.md promises for a Git registry, by its name and with its fields."""

from __future__ import annotations

import re
from pathlib import Path

from harness.waiting import until

DOCS = Path(__file__).parents[2] / "docs"

# Event → level, and the fields of its context; docs/observability.md says what stands for a field that is not here.
CONTROLLER = {
    "registry_commit_detected": ("INFO", "commit_sha author timestamp"),
    "registry_validation_started": ("INFO", "commit_sha"),
    "registry_validation_success": ("INFO", "commit_sha duration_ms"),
    "registry_validation_failed": ("ERROR", "commit_sha validation_errors"),
    "reconciliation_cycle_started": ("DEBUG", "cycle_number"),
    "state_drift_detected": ("INFO", "drift_type deployment_id details"),
    "command_dispatched": ("INFO", "command_type deployment_id worker_id correlation_id"),
    "worker_heartbeat_received": ("DEBUG", "worker_id models_loaded capacity"),
    "worker_marked_suspect": ("WARN", "worker_id last_heartbeat"),
    "worker_marked_failed": ("ERROR", "worker_id last_heartbeat loaded_models"),
    "model_redeployment_triggered": ("WARN", "deployment_id reason target_workers"),
    "schema_compatibility_violation": ("ERROR", "commit_sha details"),
    "eviction_triggered": ("WARN", "deployment_id worker_id reason"),
}
WORKER = {
    "command_received": ("INFO", "command_type deployment_id correlation_id"),
    "model_load_started": ("INFO", "deployment_id model_version"),
    "artifact_download_started": ("DEBUG", "deployment_id artifact_path"),
    "artifact_download_completed": ("DEBUG", "deployment_id size_bytes duration_ms"),
    "checksum_validation_success": ("DEBUG", "deployment_id checksum"),
    "checksum_validation_failed": ("ERROR", "deployment_id expected_checksum actual_checksum"),
    "model_initialization_started": ("DEBUG", "deployment_id"),
    "model_validation_started": ("DEBUG", "deployment_id"),
    "model_validation_success": ("INFO", "deployment_id validation_duration_ms"),
    "model_validation_failed": ("ERROR", "deployment_id validation_error"),
    "model_load_success": ("INFO", "deployment_id model_version total_duration_ms"),
    "model_load_failed": ("ERROR", "deployment_id error_type error_message stack_trace"),
    "model_reload_started": ("INFO", "deployment_id old_version new_version"),
    "model_reload_success": ("INFO", "deployment_id new_version total_duration_ms"),
    "model_unload_started": ("INFO", "deployment_id"),
    "model_unload_success": ("INFO", "deployment_id duration_ms"),
    "heartbeat_sent": ("DEBUG", "worker_id models_count"),
}

# Metrics with labels that are there from the first time on that something happens, which does not happen here.
OCCASIONAL = {
    # Only of nodes of a cluster.
    "berth_node_certificate_expiry_timestamp_seconds", "berth_node_certificate_renewals",
    # Only with an access file.
    "berth_access_file_usable", "berth_oidc_fetches", "berth_oidc_keys",
    "berth_gossip_dropped", "berth_notifications", "berth_source_webhooks", "berth_worker_circuit_breaker",
    "berth_function_builds", "berth_function_circuit_breaker", "berth_function_requests",
    # Only on controllers that do not lead.
    "berth_function_artifact_copies",
    "worker_model_answers_broke_schema", "worker_model_process_deaths",
    # Only with payload processors.
    "berth_payloads",
    # Only where a model or a function may reach hosts.
    "worker_model_connections", "berth_function_connections",
    # Only of the operator of Kubernetes.
    "berth_operator_attempt_duration_seconds", "berth_operator_attempts", "berth_operator_leading", "berth_operator_objects",
    "berth_operator_reviews", "berth_operator_waiting_objects", "berth_operator_watch_failures",
    # Only where there is a GPU.
    "berth_gpu_memory_bytes", "berth_gpu_memory_used_bytes", "berth_gpu_utilization",
}  # fmt: skip

# What looks like a metric in the documents and is an event, or a field of one.
OTHER_WORDS = {
    "system_packages_installed", "worker_built", "worker_degraded", "worker_id", "worker_left", "worker_recovered",
    "worker_refused", "worker_versions",
}  # fmt: skip


def test_every_event_and_every_metric_of_the_document(world):
    """One fleet to which everything happens that has a name."""
    world.add_worker("worker-eu-west-1c")
    for worker in world.workers:
        world.registry.worker(worker, capacity={"max_models": 2})
    model = world.model("doubler")
    model.release("1.0.0")
    world.registry.deploy("doubler", model, "1.0.0", replicas=2)
    world.registry.deploy("low-a", model, "1.0.0", priority=10)
    world.registry.deploy("low-b", model, "1.0.0", priority=10)
    world.push("Deploy three")
    world.start()
    for id, copies in (("doubler", 2), ("low-a", 1), ("low-b", 1)):
        world.until_ready(id, "1.0.0", copies)

    model.release("1.1.0")
    world.registry.deploy("doubler", model, "1.1.0", replicas=2)
    world.push("Deploy doubler 1.1.0: a reload, and the old one unloads")
    world.until_ready("doubler", "1.1.0", 2)

    # Two versions that cannot be loaded: a damaged artifact, and answers that break the contract.
    model.release("1.2.0")
    model.weights("1.2.0").write_text("damaged")
    other = world.model("wrong")
    other.write("src/postprocessing.py", "def write(output, config):\n    raise ValueError('no')\n")
    other.release("1.0.0")
    world.registry.deploy("doubler", model, "1.2.0", replicas=2)
    world.registry.deploy("low-b", other, "1.0.0", priority=10)
    world.push("Two mistakes")
    for event in ("checksum_validation_failed", "model_validation_failed"):
        until(event, lambda: world.fleet.logged(event))
    world.registry.deploy("doubler", model, "1.1.0", replicas=2)
    world.registry.deploy("low-b", model, "1.0.0", priority=10)
    world.push("And back")
    world.until_ready("doubler", "1.1.0", 2)
    world.until_ready("low-b", "1.0.0")

    # A commit that is refused, of the outcome that has an event of its own; and another that is not.
    model.release("3.0.0", **{"schemaVersion": "3.1.0"})
    for worker in world.workers:
        world.registry.worker(worker, capacity={"max_models": 2}, supported_schema_versions=["3.0.0"])
    world.registry.deploy("newer", model, "3.0.0")
    world.push("A card that nobody reads")
    until("the refusal", lambda: world.fleet.logged("schema_compatibility_violation"))
    for worker in world.workers:
        world.registry.worker(worker, capacity={"max_models": 2})
    (world.registry.work / world.registry.path("newer")).unlink()

    # More than there is room for: the least important leave.
    world.registry.deploy("high", model, "1.0.0", priority=90, replicas=3)
    world.push("What matters more")
    world.until_ready("high", "1.0.0", 3)
    until("an eviction", lambda: world.fleet.logged("eviction_triggered"))

    # Metrics before somebody dies: requests, too, so that those of inference have samples.
    for node in world.fleet.nodes:
        until(f"an answer through {node.name}", lambda: node.ask("/v1/doubler", {"x": 1})[0] == 200)
        assert node.ask("/v1/doubler", {"x": "many"})[0] == 422
    until("the actual state", world.actual)
    # It is seen in the registry before the controller has heard that its push has arrived.
    until("its count", lambda: any("berth_write_back_commits_total{" in scrape(node) for node in world.fleet.nodes))
    lead = until("a leader", world.fleet.leader)
    # One that led before has told of what happened then.
    led = [node.name for node in world.fleet.nodes if node.events("term_began")]
    metrics_are_there({node.name: scrape(node) for node in world.fleet.nodes}, led)

    # A worker that does not lead stops answering, as if it were cut off, and comes back.
    victim = next(node for node in world.fleet.nodes if node.name != lead and node.name in world.replicas("high"))
    victim.pause()
    try:
        for event in ("worker_marked_suspect", "worker_marked_failed", "model_redeployment_triggered"):
            until(event, lambda: world.fleet.logged(event))
    finally:
        victim.resume()
    world.until_ready("high", "1.0.0", 3)

    for names, component in ((CONTROLLER, "broker"), (WORKER, "worker-")):
        wrong = lambda: {event: found for event, said in names.items() if (found := deviates(world, event, *said, component))}
        until(lambda: f"all of it; {wrong()}", lambda: not wrong())


def deviates(world, event: str, level: str, fields: str, component: str) -> str | None:
    """How what was logged is not what the document says."""
    entries = world.fleet.logged(event)
    if not entries:
        return "was never logged"
    for entry in entries:
        if entry["level"] != level:
            return f"has the level {entry['level']}"
        if not re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d+Z", entry["timestamp"]):
            return f"has the time {entry['timestamp']}"
    if not any(entry["component"].startswith(component) for entry in entries):
        return f"comes from {entries[0]['component']}"
    lacking = [field for field in fields.split() if not any(field in entry["context"] for entry in entries)]
    return f"lacks {lacking}: {entries[0]['context']}" if lacking else None


def scrape(node) -> str:
    status, text = node.call("GET", "/metrics", None, at=node.api)
    assert status == 200
    return text


def alerts_can_fire(texts: list[str], rules: str) -> None:
    """A histogram that ends below an alert's threshold never says that more is too long."""
    watched = re.findall(r"histogram_quantile\(.*?rate\((\w+)_bucket.*\) > (\d+)", rules)
    assert len(watched) >= 7, watched
    for name, threshold in watched:
        ends = {float(end) for text in texts for end in re.findall(rf'^{name}_bucket{{.*?le="([0-9.]+)"', text, re.MULTILINE)}
        assert max(ends, default=0.0) > float(threshold), f"{name} ends at {max(ends, default=None)}, and {threshold} is too long"


def metrics_are_there(texts: dict[str, str], led: list[str]) -> None:
    """Every name in the tables and the alert rules is exported, with the type and from the node that is written there."""
    types = lambda text: dict(line.split()[2:4] for line in text.splitlines() if line.startswith("# TYPE "))
    scraped = {node: types(text) for node, text in texts.items()}
    rules = (DOCS / "alerts/berth.rules.yaml").read_text()
    alerts_can_fire(list(texts.values()), rules)
    everywhere = set().union(*scraped.values())
    table = (DOCS / "observability.md").read_text()
    rows = [line.strip("| ").split("|") for line in table.splitlines() if line.startswith("| `") and "`broker" in line or line.startswith(("| `worker.", "| `system."))]
    assert len(rows) >= 25, "the table of metrics is not where it was"
    for row in rows:
        kind, where = row[2].split(",")[0].strip(), row[3].strip()
        for name in re.findall(r"`([a-z_]+)[`{]", row[1]):
            # What has labels is there from its first sample on.
            nodes = led if where == "leader" else list(scraped)
            found = {scraped[node].get(name.removesuffix("_total")) for node in nodes} - {None}
            assert found == {kind}, f"{name} on {nodes}: {found}, not a {kind}"
    named = re.findall(r"\b((?:berth|broker|worker|system)_[a-z_]+)", rules)
    for page in ("operations.md", "observability.md", "gitops.md", "failures.md"):
        named += re.findall(r"`((?:berth|broker|worker|system)_[a-z_]+)[`{]", (DOCS / page).read_text())
    there = {base(one) for one in everywhere} | OCCASIONAL
    lacking = {name for name in named if base(name) not in there} - OTHER_WORDS - set(CONTROLLER) - set(WORKER)
    assert not lacking, f"no node has {sorted(lacking)}"
    undocumented = {name for name in everywhere if not any(base(name) == base(one) for one in named)}
    assert not undocumented, f"no page tells of {sorted(undocumented)}"


def base(name: str) -> str:
    """As it is declared: without what is appended to samples."""
    return re.sub(r"_(total|bucket|sum|count)$", "", name)
