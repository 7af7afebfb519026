//! Models of Python's frameworks: in Berth, in MLServer, in Triton's python backend, in BentoML, and called without a server.
//!
//! Each server gets the same file, one process for the model, and rows one by one in the JSON that its users send.

use std::{
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

use crate::{
    Arguments,
    load::{self, Figures, Request},
    server::{Server, free, path_with, scratch, triton_home},
    throughput::{CONCURRENCIES, Row},
};

/// A model of `bench/python/models.py`.
pub(crate) struct Kind {
    pub(crate) name: &'static str,
    file: &'static str,
    /// The framework and the shape of the model, for the page.
    pub(crate) told: &'static str,
}

pub(crate) const KINDS: [Kind; 3] = [
    Kind { name: "forest", file: "forest.joblib", told: "scikit-learn: 100 trees after a scaler, a row of 30 numbers" },
    Kind { name: "trees", file: "trees.ubj", told: "XGBoost: 200 trees, a row of 30 numbers" },
    Kind {
        name: "text",
        file: "text.joblib",
        told: "scikit-learn: word frequencies and a logistic regression, a text of 40 words",
    },
];

/// Figures of one model.
pub(crate) struct Measured {
    pub(crate) kind: &'static Kind,
    /// Median of the framework's own call with one row, in a loop.
    pub(crate) bare: Duration,
    pub(crate) rows: Vec<Row>,
}

/// Models one after the other; all servers of a model are up while it is measured, so that a slow minute of the machine hits all.
pub(crate) async fn measure(arguments: &Arguments) -> Result<Vec<Measured>> {
    let bin =
        arguments.python.as_deref().context("the Python models need --python, the bin folder of an environment")?;
    let files = scratch("python")?;
    let models = files.join("models");
    script(bin, &["train".as_ref(), models.as_os_str()])?;
    let samples: Value = serde_json::from_slice(&fs_err::read(models.join("samples.json"))?)?;
    let mut measured = Vec::new();
    for kind in &KINDS {
        measured.push(one(arguments, bin, &models, kind, &samples[kind.name]).await?);
    }
    fs_err::remove_dir_all(files)?;
    Ok(measured)
}

async fn one(
    arguments: &Arguments,
    bin: &Path,
    models: &Path,
    kind: &'static Kind,
    sample: &Value,
) -> Result<Measured> {
    let told = script(bin, &["call".as_ref(), models.as_os_str(), kind.name.as_ref()])?;
    let bare = Duration::from_secs_f64(told.trim().parse::<f64>()? / 1e6);
    eprintln!("{:12} {:18} {bare:?}", kind.name, "without a server");
    let mut servers = vec![berth(&arguments.berth, models, kind, sample).await?];
    if let Some(bin) = &arguments.mlserver {
        servers.push(mlserver(bin, models, kind, sample).await?);
    }
    if let Some(bin) = &arguments.triton {
        servers.push(triton(bin, models, kind, sample).await?);
    }
    servers.push(bentoml(bin, models, kind, sample).await?);
    let mut rows = Vec::new();
    for concurrency in CONCURRENCIES {
        for (server, request) in &servers {
            let address = server.http.context("an address")?;
            let figures = load::run(address, request, concurrency, arguments.seconds).await;
            let figures = figures.map_err(|error| format!("{error:#}"));
            let told = figures.as_ref().map_or_else(|error| format!("failed: {error}"), Figures::to_string);
            eprintln!("{:12} c={concurrency:<2} {:10} {told}", kind.name, server.name);
            rows.push(Row { model: kind.name, protocol: "REST-JSON", concurrency, server: server.name, figures });
        }
    }
    Ok(Measured { kind, bare, rows })
}

/// `berth serve`, as a user would type it.
async fn berth(binary: &Path, models: &Path, kind: &Kind, sample: &Value) -> Result<(Server, Request)> {
    let files = scratch(&format!("berth-{}", kind.name))?;
    let (http, api) = (free()?, free()?);
    let mut command = Command::new(fs_err::canonicalize(binary)?);
    command.arg("serve");
    if kind.name == "text" {
        command.arg(card(&files, models)?).arg("--artifact").arg(models.join(kind.file));
    } else {
        let all = fs_err::read_to_string("bench/python/requirements.txt")?;
        let own = all.lines().filter(|line| !line.starts_with('#') && !line.starts_with("bentoml"));
        let requirements = files.join("requirements.txt");
        fs_err::write(&requirements, own.collect::<Vec<_>>().join("\n"))?;
        command.arg(models.join(kind.file)).arg("--requirements").arg(requirements);
    }
    command.args(["--model", kind.name, "--http", &http.to_string(), "--api", &api.to_string(), "--data"]);
    command.arg(files.join("data"));
    let mut server = Server::spawn("Berth", &mut command, files)?;
    server.http = Some(http);
    server.ready(&format!("/v2/models/{}/ready", kind.name)).await?;
    let request = if kind.name == "text" {
        post("/v1/text", &json!({"text": sample}))
    } else {
        post(&format!("/v2/models/{}/infer", kind.name), &tensor(kind, sample))
    };
    Ok((server, request))
}

/// The model card of the texts, with the checksum of the model that was trained.
fn card(files: &Path, models: &Path) -> Result<PathBuf> {
    let samples: Value = serde_json::from_slice(&fs_err::read(models.join("samples.json"))?)?;
    let checksum = samples["checksum"].as_str().context("a checksum")?;
    let folder = files.join("text");
    fs_err::create_dir_all(folder.join("src"))?;
    for file in ["src/__init__.py", "src/model.py", "model-card.yaml"] {
        let text = fs_err::read_to_string(Path::new("bench/python/text").join(file))?;
        fs_err::write(folder.join(file), text.replace(&"0".repeat(64), checksum))?;
    }
    Ok(folder)
}

/// MLServer with its own runtimes, all in one process.
async fn mlserver(bin: &Path, models: &Path, kind: &Kind, sample: &Value) -> Result<(Server, Request)> {
    let files = scratch(&format!("mlserver-{}", kind.name))?;
    let (http, grpc, metrics) = (free()?, free()?, free()?);
    let settings = json!({
        "host": "127.0.0.1", "http_port": http.port(), "grpc_port": grpc.port(), "metrics_port": metrics.port(),
        "parallel_workers": 0, "debug": false,
    });
    fs_err::write(files.join("settings.json"), settings.to_string())?;
    let class = match kind.name {
        "forest" => "mlserver_sklearn.SKLearnModel",
        "trees" => "mlserver_xgboost.XGBoostModel",
        _ => "mlserver_text.Text",
    };
    let folder = files.join(kind.name);
    fs_err::create_dir_all(&folder)?;
    let settings = json!({"name": kind.name, "implementation": class, "parameters": {"uri": models.join(kind.file)}});
    fs_err::write(folder.join("model-settings.json"), settings.to_string())?;
    let mut command = Command::new(bin.join("mlserver"));
    command
        .arg("start")
        .arg(&files)
        .env("PATH", path_with(bin)?)
        .env("PYTHONPATH", fs_err::canonicalize("bench/python")?);
    let mut server = Server::spawn("MLServer", command.env("OMP_NUM_THREADS", "1"), files)?;
    server.http = Some(http);
    server.ready(&format!("/v2/models/{}/ready", kind.name)).await?;
    Ok((server, post(&format!("/v2/models/{}/infer", kind.name), &tensor(kind, sample))))
}

/// Triton's python backend with its dynamic batching.
async fn triton(bin: &Path, models: &Path, kind: &Kind, sample: &Value) -> Result<(Server, Request)> {
    let files = scratch(&format!("triton-{}", kind.name))?;
    let (http, grpc, metrics) = (free()?, free()?, free()?);
    let folder = files.join("models").join(kind.name);
    fs_err::create_dir_all(folder.join("1"))?;
    fs_err::copy("bench/python/triton_model.py", folder.join("1/model.py"))?;
    fs_err::copy("bench/python/models.py", folder.join("1/models.py"))?;
    let (input, output) = match kind.name {
        "text" => ("TYPE_STRING dims: [1]", "TYPE_STRING"),
        _ => ("TYPE_FP32 dims: [30]", "TYPE_FP32"),
    };
    let config = format!(
        "name: \"{}\"\nbackend: \"python\"\nmax_batch_size: 64\ninput [{{name: \"rows\" data_type: {input}}}]\n\
         output [{{name: \"result\" data_type: {output} dims: [1]}}]\ndynamic_batching {{ }}\n\
         instance_group [{{kind: KIND_CPU count: 1}}]\n",
        kind.name
    );
    fs_err::write(folder.join("config.pbtxt"), config)?;
    let home = triton_home(bin)?;
    let mut command = Command::new(home.join("bin/tritonserver"));
    command
        .env("PATH", path_with(bin)?)
        .env("MODELS", models)
        .env("OMP_NUM_THREADS", "1")
        .arg(format!("--model-repository={}", files.join("models").display()))
        .arg(format!("--backend-directory={}", home.join("backends").display()));
    for (what, address) in [("http", http), ("grpc", grpc), ("metrics", metrics)] {
        command.args([format!("--{what}-address=127.0.0.1"), format!("--{what}-port={}", address.port())]);
    }
    command.args(["--allow-gpu-metrics=false", "--log-info=false"]);
    let mut server = Server::spawn("Triton", &mut command, files)?;
    server.http = Some(http);
    server.ready(&format!("/v2/models/{}/ready", kind.name)).await?;
    Ok((server, post(&format!("/v2/models/{}/infer", kind.name), &tensor(kind, sample))))
}

/// BentoML with one worker and its adaptive batching.
async fn bentoml(bin: &Path, models: &Path, kind: &Kind, sample: &Value) -> Result<(Server, Request)> {
    let files = scratch(&format!("bentoml-{}", kind.name))?;
    let http = free()?;
    let mut command = Command::new(bin.join("bentoml"));
    command
        .args(["serve", "service:Served", "--host", "127.0.0.1", "--port", &http.port().to_string(), "--working-dir"])
        .arg(fs_err::canonicalize("bench/python")?)
        .env("PATH", path_with(bin)?)
        .env("MODELS", models)
        .env("MODEL", kind.name)
        .env("BENTOML_HOME", files.join("home"))
        .env("BENTOML_DO_NOT_TRACK", "true")
        .env("OMP_NUM_THREADS", "1");
    let mut server = Server::spawn("BentoML", &mut command, files)?;
    server.http = Some(http);
    server.is_asked_to_end = true;
    server.ready("/readyz").await?;
    Ok((server, post("/predict", &json!({"rows": [sample]}))))
}

/// The row in the JSON of the Open Inference Protocol.
fn tensor(kind: &Kind, sample: &Value) -> Value {
    let input = match kind.name {
        "text" => json!({"name": "rows", "datatype": "BYTES", "shape": [1, 1], "data": [sample]}),
        _ => json!({"name": "rows", "datatype": "FP32", "shape": [1, 30], "data": sample}),
    };
    json!({"inputs": [input]})
}

fn post(path: &str, body: &Value) -> Request {
    let body = body.to_string();
    let head = format!(
        "POST {path} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    Request::Http((head + &body).into())
}

/// Runs `bench/python/models.py` on one thread; its output.
fn script(bin: &Path, arguments: &[&std::ffi::OsStr]) -> Result<String> {
    let program: PathBuf = bin.join("python");
    let output =
        Command::new(program).arg("bench/python/models.py").args(arguments).env("OMP_NUM_THREADS", "1").output()?;
    ensure!(output.status.success(), "models.py: {}", String::from_utf8_lossy(&output.stderr));
    Ok(String::from_utf8(output.stdout)?)
}
