//! Servers as processes: started, waited for, killed when dropped.

use std::{
    net::{Ipv4Addr, SocketAddr, TcpListener},
    os::unix::process::CommandExt as _,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::json;

use crate::{
    load::HttpConnection,
    payload::{CNN, Model, TABULAR},
};

/// A running server. Dropping it kills its whole process group and deletes its files.
pub(crate) struct Server {
    pub(crate) name: &'static str,
    pub(crate) http: Option<SocketAddr>,
    pub(crate) grpc: Option<SocketAddr>,
    /// Berth's control API.
    pub(crate) api: Option<SocketAddr>,
    /// True if it speaks the binary tensor extension over REST.
    pub(crate) binary: bool,
    /// True if it is asked to end before it is killed: its workers leave its process group, or it is instrumented (`cargo xtask pgo`) and
    /// writes its counts as it ends.
    pub(crate) is_asked_to_end: bool,
    process: Child,
    files: PathBuf,
}

impl Drop for Server {
    fn drop(&mut self) {
        if self.is_asked_to_end {
            Command::new("kill").args(["-TERM", "--", &self.process.id().to_string()]).status().ok();
            let begin = Instant::now();
            while begin.elapsed() < END && matches!(self.process.try_wait(), Ok(None)) {
                std::thread::sleep(Duration::from_millis(50));
            }
        }
        let group = format!("-{}", self.process.id());
        Command::new("kill").args(["-KILL", "--", &group]).stderr(Stdio::null()).status().ok();
        self.process.wait().ok();
        fs_err::remove_dir_all(&self.files).ok();
    }
}

/// A model of Triton's.
pub(crate) struct Hosted {
    pub(crate) name: &'static str,
    pub(crate) artifact: &'static str,
    /// Its `config.pbtxt`.
    pub(crate) config: String,
}

/// Time limit for a server to come up, or to end. Berth may have to fetch a model's packages first.
const START: Duration = Duration::from_secs(180);

/// Time that a server gets to end. An instrumented one also writes its counts.
const END: Duration = Duration::from_secs(30);

impl Server {
    /// Starts a program in a process group of its own; its output goes to `files/log`.
    pub(crate) fn spawn(name: &'static str, command: &mut Command, files: PathBuf) -> Result<Self> {
        let log = fs_err::File::create(files.join("log"))?;
        let process = command
            .stdin(Stdio::null())
            .stdout(log.file().try_clone()?)
            .stderr(log.into_parts().0)
            .process_group(0)
            .spawn()
            .with_context(|| format!("cannot start {name}"))?;
        let is_asked_to_end = std::env::var_os("LLVM_PROFILE_FILE").is_some();
        Ok(Self { name, http: None, grpc: None, api: None, binary: true, is_asked_to_end, process, files })
    }

    /// Berth on `models`, an empty folder being allowed, with more arguments.
    pub(crate) async fn berth(binary: &Path, models: &[&Model], more: &[&str]) -> Result<Self> {
        let files = scratch("berth")?;
        let folder = files.join("models");
        fs_err::create_dir_all(&folder)?;
        for model in models {
            let artifact = fs_err::canonicalize(model.artifact)?;
            let manifest = json!({
                "apiVersion": "berth.dev/v1",
                "kind": "ModelDeployment",
                "metadata": {"name": model.name},
                "spec": {"model": {"format": "onnx", "uri": format!("file:{}", artifact.display())}, "replicas": 1},
            });
            fs_err::write(folder.join(format!("{}.json", model.name)), manifest.to_string())?;
        }
        let (http, api) = (free()?, free()?);
        let mut command = Command::new(binary);
        command.arg("up").arg(&folder).arg("--data").arg(files.join("data"));
        command.args(["--http", &http.to_string(), "--api", &api.to_string()]).args(more);
        let mut server = Self::spawn("Berth", &mut command, files)?;
        (server.http, server.grpc, server.api) = (Some(http), Some(http), Some(api));
        // Over TLS, who measures knows whom to trust.
        if !more.contains(&"--tls") {
            server.ready("/v2/health/ready").await?;
        }
        Ok(server)
    }

    /// Tells it to end, as Kubernetes does; its exit status.
    pub(crate) async fn end(&mut self) -> Result<ExitStatus> {
        Command::new("kill").arg(self.process.id().to_string()).status()?;
        let told = Instant::now();
        loop {
            if let Some(status) = self.process.try_wait()? {
                return Ok(status);
            }
            ensure!(told.elapsed() < START, "{} did not end", self.name);
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// The number of its process.
    pub(crate) fn id(&self) -> u32 {
        self.process.id()
    }

    /// The folder of its files.
    pub(crate) fn files(&self) -> &Path {
        &self.files
    }

    /// One of this program's echo servers.
    pub(crate) async fn echo(role: &'static str) -> Result<Self> {
        Self::echo_at(role, free()?).await
    }

    /// The same at an address where another one was.
    pub(crate) async fn echo_at(role: &'static str, address: SocketAddr) -> Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args([role, &address.to_string()]);
        Self::started_echo(role, address, &mut command).await
    }

    /// The one for HTTP, with a certificate of Berth's own: the folder in which `--tls self` keeps it.
    pub(crate) async fn echo_over_tls(certificate: &Path) -> Result<Self> {
        let (role, address) = ("echo-http", free()?);
        let mut command = Command::new(std::env::current_exe()?);
        command.args([role, &address.to_string(), "--tls"]).arg(certificate);
        Self::started_echo(role, address, &mut command).await
    }

    async fn started_echo(role: &'static str, address: SocketAddr, command: &mut Command) -> Result<Self> {
        let http = role == "echo-http";
        let mut server = Self::spawn(if http { "axum echo" } else { "tonic echo" }, command, scratch(role)?)?;
        (server.http, server.grpc, server.binary) = (http.then_some(address), (!http).then_some(address), false);
        let started = Instant::now();
        while tokio::net::TcpStream::connect(address).await.is_err() {
            server.check(started)?;
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        Ok(server)
    }

    /// MLServer with a custom runtime around the same engine.
    pub(crate) async fn mlserver(bin: &Path) -> Result<Self> {
        let files = scratch("mlserver")?;
        let (http, grpc, metrics) = (free()?, free()?, free()?);
        let settings = json!({
            "host": "127.0.0.1", "http_port": http.port(), "grpc_port": grpc.port(), "metrics_port": metrics.port(),
            "parallel_workers": 0, "debug": false,
        });
        fs_err::write(files.join("settings.json"), settings.to_string())?;
        for model in [&TABULAR, &CNN] {
            let folder = files.join(model.name);
            fs_err::create_dir_all(&folder)?;
            let artifact = fs_err::canonicalize(model.artifact)?;
            let settings =
                json!({"name": model.name, "implementation": "runtime.Onnx", "parameters": {"uri": artifact}});
            fs_err::write(folder.join("model-settings.json"), settings.to_string())?;
        }
        let mut command = Command::new(bin.join("mlserver"));
        command
            .arg("start")
            .arg(&files)
            .env("PATH", path_with(bin)?)
            .env("PYTHONPATH", fs_err::canonicalize("bench/mlserver")?);
        let mut server = Self::spawn("MLServer", &mut command, files)?;
        (server.http, server.grpc, server.binary) = (Some(http), Some(grpc), false);
        for model in [&TABULAR, &CNN] {
            server.ready(&format!("/v2/models/{}/ready", model.name)).await?;
        }
        Ok(server)
    }

    /// Triton as its Python wheel carries it: the python backend around the same engine, with dynamic batching.
    pub(crate) async fn triton(bin: &Path) -> Result<Self> {
        let hosted = [&TABULAR, &CNN].map(|model| Hosted {
            name: model.name,
            artifact: model.artifact,
            config: triton_config(model),
        });
        Self::triton_with(bin, &hosted).await
    }

    /// The same with other models.
    pub(crate) async fn triton_with(bin: &Path, models: &[Hosted]) -> Result<Self> {
        let files = scratch("triton")?;
        let (http, grpc, metrics) = (free()?, free()?, free()?);
        for model in models {
            let folder = files.join("models").join(model.name);
            fs_err::create_dir_all(folder.join("1"))?;
            fs_err::copy("bench/triton/model.py", folder.join("1/model.py"))?;
            fs_err::copy(model.artifact, folder.join("1/model.onnx"))?;
            fs_err::write(folder.join("config.pbtxt"), &model.config)?;
        }
        let home = triton_home(bin)?;
        let mut command = Command::new(home.join("bin/tritonserver"));
        command.env("PATH", path_with(bin)?).arg(format!("--model-repository={}", files.join("models").display()));
        command.arg(format!("--backend-directory={}", home.join("backends").display()));
        for (what, address) in [("http", http), ("grpc", grpc), ("metrics", metrics)] {
            command.args([
                format!("--{what}-address"),
                "127.0.0.1".into(),
                format!("--{what}-port"),
                address.port().to_string(),
            ]);
        }
        command.args(["--allow-gpu-metrics=false", "--log-info=false"]);
        let mut server = Self::spawn("Triton", &mut command, files)?;
        (server.http, server.grpc) = (Some(http), Some(grpc));
        for model in models {
            server.ready(&format!("/v2/models/{}/ready", model.name)).await?;
        }
        Ok(server)
    }

    /// Waits until a `GET` of `path` gets 200.
    pub(crate) async fn ready(&mut self, path: &str) -> Result<()> {
        let address = self.http.context("it has an HTTP port")?;
        let started = Instant::now();
        let request = format!("GET {path} HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n");
        loop {
            if let Ok(mut connection) = HttpConnection::open(address).await
                && let Ok((200, _)) = connection.call(request.as_bytes()).await
            {
                return Ok(());
            }
            self.check(started)?;
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    fn check(&mut self, started: Instant) -> Result<()> {
        let ended = self.process.try_wait()?;
        if ended.is_some() || started.elapsed() > START {
            let log = fs_err::read_to_string(self.files.join("log"))?;
            bail!("{} did not come up ({ended:?}):\n{log}", self.name);
        }
        Ok(())
    }

    /// Processor time that it has taken so far, in user and system mode.
    pub(crate) fn processor(&self) -> Result<Duration> {
        /// Ticks per second: what Linux tells to programs on every platform.
        const TICKS: f64 = 100.0;
        let stat = fs_err::read_to_string(format!("/proc/{}/stat", self.process.id()))?;
        let (_, fields) = stat.rsplit_once(')').context("a name in /proc")?;
        let mut fields = fields.split_whitespace().skip(11);
        let mut ticks = || fields.next().context("times in /proc")?.parse::<f64>().context("ticks");
        Ok(Duration::from_secs_f64((ticks()? + ticks()?) / TICKS))
    }

    /// Resident memory of the process, in bytes, as the kernel counts it.
    pub(crate) fn resident(&self) -> Result<u64> {
        let status = fs_err::read_to_string(format!("/proc/{}/status", self.process.id()))?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("VmRSS in /proc")?;
        let kib: u64 = line.trim().trim_end_matches(" kB").parse()?;
        Ok(kib * 1024)
    }
}

fn triton_config(model: &Model) -> String {
    let dims = |shape: &[i64]| shape.iter().map(i64::to_string).collect::<Vec<_>>().join(", ");
    let outputs: Vec<_> = model
        .outputs
        .iter()
        .map(|(name, datatype, dims)| format!("{{name: \"{name}\" data_type: {datatype} dims: [{dims}]}}"))
        .collect();
    format!(
        "name: \"{}\"\nbackend: \"python\"\nmax_batch_size: 64\ninput [{{name: \"{}\" data_type: TYPE_FP32 dims: [{}]}}]\noutput [{}]\n\
         dynamic_batching {{ }}\ninstance_group [{{kind: KIND_CPU count: 1}}]\n",
        model.name,
        model.input,
        dims(&model.shape[1..]),
        outputs.join(", ")
    )
}

/// The folder of Triton itself within its wheel, ready to run.
pub(crate) fn triton_home(bin: &Path) -> Result<PathBuf> {
    let home = triton_package(bin)?.join("tritonserver");
    // The stub must lie beside the backend, whose library path is relative to it.
    fs_err::copy(
        home.join("python_backend_stubs/3.11/triton_python_backend_stub"),
        home.join("backends/python/triton_python_backend_stub"),
    )?;
    Ok(home)
}

fn triton_package(bin: &Path) -> Result<PathBuf> {
    let lib = bin.parent().context("a bin folder has a parent")?.join("lib");
    for version in fs_err::read_dir(lib)? {
        let package = version?.path().join("site-packages/pytriton");
        if package.exists() {
            return Ok(package);
        }
    }
    bail!("there is no pytriton beside {}", bin.display())
}

/// `PATH` with `bin` first.
pub(crate) fn path_with(bin: &Path) -> Result<std::ffi::OsString> {
    let old = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::iter::once(fs_err::canonicalize(bin)?).chain(std::env::split_paths(&old));
    Ok(std::env::join_paths(folders)?)
}

/// An address that nobody listens on.
pub(crate) fn free() -> Result<SocketAddr> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?)
}

/// An empty folder.
pub(crate) fn scratch(name: &str) -> Result<PathBuf> {
    let folder = std::env::temp_dir().join(format!("berth-bench-{}-{name}", std::process::id()));
    fs_err::remove_dir_all(&folder).ok();
    fs_err::create_dir_all(&folder)?;
    Ok(folder)
}
