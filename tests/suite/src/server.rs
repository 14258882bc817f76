//! The staged program as a server.

use crate::http::{self, Answer, Coming};
use crate::{Heard, command};
use serde_json::Value;
use std::path::Path;
use std::process::{Child, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// A server that runs; it is ended with this.
pub struct Server {
    /// The process.
    pub child: Child,
    /// Where it listens.
    pub address: String,
    /// What it says to its operator.
    pub err: Heard,
}

impl Server {
    /// Starts one on a free port, and waits until it listens.
    ///
    /// # Panics
    /// It does not listen.
    pub fn start(home: &Path, manifest: Option<&str>, arguments: &[&str]) -> Self {
        let mut all: Vec<&str> = Vec::new();
        all.extend(manifest.iter().flat_map(|file| ["--manifest", *file]));
        all.extend(["serve", "--port", "0"]);
        all.extend(arguments);
        let mut child = command(home, &all)
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the program starts");
        let err = Heard::of(child.stderr.take().expect("standard error"));
        let mut server = Self {
            child,
            address: String::new(),
            err,
        };
        let said = server.hears("listening on http");
        let said = said.split("listening on http").nth(1);
        let address = said.and_then(|said| said.split("://").nth(1));
        let address = address.expect("an address");
        let address = address.lines().next().expect("an address");
        server.address = address.trim().to_owned();
        server
    }

    /// Waits until all its models have answered.
    ///
    /// # Panics
    /// They don't.
    pub fn ready(self) -> Self {
        self.waits("it is ready", |server| server.get("/readyz").status == 200);
        self
    }

    /// Waits until something is so.
    ///
    /// # Panics
    /// It is not so after a while.
    pub fn waits(&self, what: &str, mut is: impl FnMut(&Self) -> bool) {
        let start = Instant::now();
        while !is(self) {
            let late = start.elapsed() > Duration::from_secs(60);
            assert!(!late, "{what}: not so; it said:\n{}", self.err.text());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Waits until it has said something; gives all that it has said.
    ///
    /// # Panics
    /// It does not say it.
    pub fn hears(&self, words: &str) -> String {
        self.waits(words, |server| {
            // The rest of the line as well.
            let text = server.err.text();
            let after = text
                .split_once(words)
                .map(|(_, after)| after.contains('\n'));
            after.unwrap_or(false)
        });
        self.err.text()
    }

    /// Asks for something.
    pub fn get(&self, path: &str) -> Answer {
        http::ask(&self.address, "GET", path, "")
    }

    /// Sends something.
    pub fn post(&self, path: &str, body: &Value) -> Answer {
        http::ask(&self.address, "POST", path, &body.to_string())
    }

    /// Sends something that is answered by a stream, which has begun.
    ///
    /// # Panics
    /// It is refused.
    pub fn stream(&self, path: &str, body: &Value) -> Coming {
        let mut body = body.clone();
        body["stream"] = Value::Bool(true);
        let stream = http::send(&self.address, "POST", path, "", &body.to_string());
        let coming = http::head(stream);
        assert_eq!(coming.status, 200, "{path}");
        coming
    }

    /// Sends a signal.
    ///
    /// # Panics
    /// It can't be sent.
    pub fn signal(&self, name: &str) {
        let pid = self.child.id().to_string();
        let sent = std::process::Command::new("kill")
            .args([name, &pid])
            .status();
        assert!(sent.expect("kill runs").success());
    }

    /// How it ended.
    ///
    /// # Panics
    /// It does not end.
    pub fn ended(&mut self, limit: Duration) -> ExitStatus {
        let start = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().expect("it can be waited for") {
                return status;
            }
            assert!(
                start.elapsed() < limit,
                "it has not ended:\n{}",
                self.err.text()
            );
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
