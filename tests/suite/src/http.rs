//! HTTP as a client of the server speaks it, by hand: one request a connection, so that tests may break off anywhere.

use serde_json::Value;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

/// An answer.
#[derive(Debug)]
pub struct Answer {
    /// Its status.
    pub status: u16,
    /// Its head, names in lower case.
    pub headers: Vec<(String, String)>,
    /// Its body.
    pub body: String,
}

impl Answer {
    /// The body as JSON.
    ///
    /// # Panics
    /// It is none.
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.body))
    }

    /// A header's value.
    pub fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(known, _)| known == name);
        found.map(|(_, value)| value.as_str())
    }

    /// The data of its events, the `[DONE]` at the end left out.
    ///
    /// # Panics
    /// It does not end with `[DONE]`, or an event is no JSON.
    pub fn events(&self) -> Vec<Value> {
        let mut data: Vec<&str> = self
            .body
            .lines()
            .filter_map(|line| line.strip_prefix("data: "))
            .collect();
        assert_eq!(data.pop(), Some("[DONE]"), "{}", self.body);
        let parse = |data: &str| serde_json::from_str(data).expect("an event is JSON");
        data.into_iter().map(parse).collect()
    }
}

/// An answer as it comes.
pub struct Coming {
    reader: BufReader<TcpStream>,
    /// Its status.
    pub status: u16,
    headers: Vec<(String, String)>,
}

/// Sends a request; a body is JSON.
///
/// # Panics
/// The server is not there.
pub fn send(address: &str, method: &str, path: &str, headers: &str, body: &str) -> TcpStream {
    let mut stream = TcpStream::connect(address).expect("the server listens");
    let limit = Some(Duration::from_secs(60));
    stream.set_read_timeout(limit).expect("a limit");
    let length = body.len();
    let request = format!(
        "{method} {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\nContent-Type: application/json\r\n\
         Content-Length: {length}\r\n{headers}\r\n{body}"
    );
    // A server that refuses may have closed before all is written.
    let _ = stream.write_all(request.as_bytes());
    stream
}

/// Reads the head of an answer.
///
/// # Panics
/// There is none.
pub fn head(stream: TcpStream) -> Coming {
    let mut reader = BufReader::new(stream);
    let mut line = String::new();
    reader.read_line(&mut line).expect("a status line");
    let status = line.split(' ').nth(1).and_then(|code| code.parse().ok());
    let status = status.unwrap_or_else(|| panic!("no status in {line:?}"));
    let mut headers = Vec::new();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).expect("a header");
        let Some((name, value)) = line.trim_end().split_once(": ") else {
            break;
        };
        headers.push((name.to_lowercase(), value.to_owned()));
    }
    Coming {
        reader,
        status,
        headers,
    }
}

impl Coming {
    /// The next line of the body, chunk sizes left out; `None` at the end.
    pub fn line(&mut self) -> Option<String> {
        let mut line = String::new();
        while self.reader.read_line(&mut line).ok()? > 0 {
            if line.starts_with("data: ") || line.starts_with(':') {
                return Some(line.trim_end().to_owned());
            }
            line.clear();
        }
        None
    }

    /// All that is left.
    ///
    /// # Panics
    /// The body is not as its head says.
    pub fn rest(mut self) -> Answer {
        let chunked = |(name, value): &(String, String)| {
            name == "transfer-encoding" && value.contains("chunked")
        };
        let mut body = Vec::new();
        if self.headers.iter().any(chunked) {
            loop {
                let mut size = String::new();
                self.reader.read_line(&mut size).expect("a chunk's size");
                let size = usize::from_str_radix(size.trim(), 16).expect("a chunk's size");
                let mut chunk = vec![0; size + 2];
                self.reader.read_exact(&mut chunk).expect("a chunk");
                body.extend(&chunk[..size]);
                if size == 0 {
                    break;
                }
            }
        } else {
            self.reader.read_to_end(&mut body).expect("a body");
        }
        Answer {
            status: self.status,
            headers: self.headers,
            body: String::from_utf8(body).expect("UTF-8"),
        }
    }
}

/// A request and its whole answer.
///
/// # Panics
/// The server is not there, or does not answer.
pub fn ask(address: &str, method: &str, path: &str, body: &str) -> Answer {
    head(send(address, method, path, "", body)).rest()
}
