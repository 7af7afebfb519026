//! Private key in a KMS, used through the operator's program.
//!
//! The program reads one line of JSON from standard input,
//! `{"op":"unwrap","keyId":"3f2a9c41d07b1234","wrapped":"BASE64"}`, writes `{"key":"BASE64"}` to standard output, and
//! ends with exit code 0. Its standard error is reported if it fails.

use std::{
    collections::BTreeMap,
    io::{Read, Write as _},
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::mpsc,
    time::Duration,
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use rustix::process::{Pid, Signal, kill_process_group};
use zeroize::Zeroizing;

use super::{Decrypt, KeyEnvironment, KeyError, PublicKey};
use crate::envelope::KeyId;

/// Limit for the helper program. Allows for a KMS on another continent.
const PATIENCE: Duration = Duration::from_secs(20);

/// Bytes read of the program's error output, enough for a long explanation.
const MOST_SAID: u64 = 16 << 10;

/// A program that asks a KMS.
#[derive(Debug)]
pub struct Exec {
    program: PathBuf,
    environment: BTreeMap<String, String>,
    patience: Duration,
}

impl Exec {
    /// The program, by its absolute path.
    ///
    /// # Errors
    /// It is not there, or others may change it.
    pub fn new(program: &Path, around: &KeyEnvironment) -> Result<Self, KeyError> {
        let wrong = |reason: String| KeyError::refused(format!("exec:{}", program.display()), reason);
        if !program.is_absolute() {
            return Err(wrong("write the absolute path of the program, exec:/PATH".to_owned()));
        }
        let about = fs_err::metadata(program).map_err(|error| wrong(error.to_string()))?;
        if !about.is_file() || about.mode() & 0o111 == 0 {
            return Err(wrong("it is not a program: chmod +x it".to_owned()));
        }
        let (owner, us) = (about.uid(), rustix::process::geteuid().as_raw());
        if owner != us && owner != 0 {
            return Err(wrong(format!("user {owner} owns and may change it: chown it to root or to this user ({us})")));
        }
        if about.mode() & 0o022 != 0 {
            return Err(wrong(format!("others may change it (mode {:04o}): chmod go-w it", about.mode() & 0o777)));
        }
        Ok(Self { program: program.to_owned(), environment: around.environment.clone(), patience: PATIENCE })
    }

    /// The same with other patience.
    #[must_use]
    pub fn within(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    fn ask(&self, question: &[u8]) -> Result<Zeroizing<Vec<u8>>, KeyError> {
        let absent = |reason: String| KeyError::absent(self.name(), reason);
        let mut command = Command::new(&self.program);
        command.env_clear().envs(&self.environment).current_dir("/");
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        let mut child = command.spawn().map_err(|error| absent(error.to_string()))?;
        // A program that ends without reading is told apart by what it says.
        let asked = child.stdin.take().map_or(Ok(()), |mut input| input.write_all(question));
        let (said, complaint) = (listen(child.stdout.take()), listen(child.stderr.take()));
        let Ok(answer) = said.recv_timeout(self.patience) else {
            end(&mut child);
            let reason = format!("the program did not answer within {} s", self.patience.as_secs_f32());
            return Err(KeyError::silent(self.name(), reason));
        };
        // Whoever closed its output is about to end; what hangs then is ended.
        let complaint = complaint.recv_timeout(self.patience).unwrap_or_default();
        let ended = wait(&mut child, self.patience);
        let complaint = String::from_utf8_lossy(&complaint).trim().replace('\n', "; ");
        match ended {
            Some(status) if status.success() && asked.is_ok() => Ok(answer),
            Some(status) if complaint.is_empty() => {
                Err(absent(format!("the program ended with {status} and said nothing")))
            }
            Some(status) => Err(absent(format!("the program ended with {status}: {complaint}"))),
            None => Err(KeyError::silent(self.name(), "the program did not end after its answer")),
        }
    }
}

impl Decrypt for Exec {
    fn id(&self) -> Option<&KeyId> {
        None
    }

    fn name(&self) -> String {
        format!("exec:{}", self.program.display())
    }

    fn public(&self) -> Option<PublicKey> {
        None
    }

    fn unwrap(&self, id: &KeyId, wrapped: &[u8]) -> Result<Zeroizing<Vec<u8>>, KeyError> {
        let question = serde_json::json!({"op": "unwrap", "keyId": id.as_str(), "wrapped": STANDARD.encode(wrapped)});
        let answer = self.ask(format!("{question}\n").as_bytes())?;
        let wrong = || KeyError::refused(self.name(), "its answer is not {\"key\":\"BASE64\"}");
        let mut answer: serde_json::Value = serde_json::from_slice(&answer).map_err(|_| wrong())?;
        let Some(serde_json::Value::String(key)) = answer.get_mut("key").map(serde_json::Value::take) else {
            return Err(wrong());
        };
        STANDARD.decode(&*Zeroizing::new(key)).map(Zeroizing::new).map_err(|_| wrong())
    }
}

/// Reads on a thread of its own, so that a program that says much on one stream does not wait for the other.
fn listen(stream: Option<impl Read + Send + 'static>) -> mpsc::Receiver<Zeroizing<Vec<u8>>> {
    let (heard, said) = mpsc::sync_channel(1);
    std::thread::spawn(move || {
        let mut text = Zeroizing::new(Vec::with_capacity(usize::try_from(MOST_SAID).unwrap_or_default()));
        if let Some(stream) = stream {
            // What was read before an error is what there is to tell.
            let _ = stream.take(MOST_SAID).read_to_end(&mut text);
        }
        let _ = heard.send(text);
    });
    said
}

/// Waits for the end of a program, and ends it if it takes too long.
fn wait(child: &mut Child, patience: Duration) -> Option<std::process::ExitStatus> {
    let deadline = std::time::Instant::now() + patience;
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return Some(status),
            Ok(None) if std::time::Instant::now() < deadline => std::thread::sleep(Duration::from_millis(2)),
            _ => {
                end(child);
                return None;
            }
        }
    }
}

/// Ends a program and what it started.
fn end(child: &mut Child) {
    if let Some(group) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) {
        // It may have ended by itself meanwhile.
        let _ = kill_process_group(group, Signal::KILL);
    }
    let _ = child.wait();
}
