//! A program in a pseudo-terminal: types keys, reads the screen as a person sees it.

use portable_pty::{Child, CommandBuilder, MasterPty, PtySize, native_pty_system};
use std::io::{Read, Write};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// A running program with a screen of 30 lines of 100 columns and a scroll-back of 1,000 lines.
pub struct Terminal {
    child: Box<dyn Child + Send + Sync>,
    // Kept open: the program would be hung up on without it.
    _master: Box<dyn MasterPty + Send>,
    writer: Arc<Mutex<Box<dyn Write + Send>>>,
    screen: Arc<Mutex<vt100::Parser>>,
}

impl Terminal {
    /// Starts a program with an environment in which `home` is its home and all of its user folders.
    ///
    /// # Panics
    /// No pseudo-terminal can be had, or the program does not start.
    pub fn start(program: &Path, arguments: &[&str], home: &Path) -> Self {
        let size = PtySize {
            rows: 30,
            cols: 100,
            pixel_width: 0,
            pixel_height: 0,
        };
        let pair = native_pty_system()
            .openpty(size)
            .expect("a pseudo-terminal");
        let mut command = CommandBuilder::new(program);
        command.args(arguments);
        command.cwd(home);
        for (name, value) in crate::environment(home) {
            command.env(name, value);
        }
        command.env("TERM", "xterm-256color");
        let child = pair
            .slave
            .spawn_command(command)
            .expect("the program starts");
        drop(pair.slave);
        let mut reader = pair.master.try_clone_reader().expect("a reader");
        let writer = Arc::new(Mutex::new(pair.master.take_writer().expect("a writer")));
        let screen = Arc::new(Mutex::new(vt100::Parser::new(30, 100, 1000)));
        let (answers, shown) = (Arc::clone(&writer), Arc::clone(&screen));
        std::thread::spawn(move || {
            let mut bytes = [0_u8; 4096];
            while let Ok(count @ 1..) = reader.read(&mut bytes) {
                let mut parser = shown.lock().unwrap_or_else(PoisonError::into_inner);
                // Each query for the cursor's position is answered with where it stands at that point of the output.
                let mut rest = &bytes[..count];
                while let Some(at) = rest.windows(4).position(|window| window == b"\x1b[6n") {
                    parser.process(&rest[..at]);
                    let (row, column) = parser.screen().cursor_position();
                    let mut writer = answers.lock().unwrap_or_else(PoisonError::into_inner);
                    let _ = write!(writer, "\x1b[{};{}R", row + 1, column + 1)
                        .and_then(|()| writer.flush());
                    rest = &rest[at + 4..];
                }
                parser.process(rest);
            }
        });
        Self {
            child,
            _master: pair.master,
            writer,
            screen,
        }
    }

    /// Types keys as they are (`\r` is Enter, `\x03` Ctrl-C, `\x04` Ctrl-D, `\x1b[A` the up arrow).
    ///
    /// # Panics
    /// The program no longer reads.
    pub fn keys(&self, keys: &str) {
        let mut writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        writer
            .write_all(keys.as_bytes())
            .and_then(|()| writer.flush())
            .expect("the program reads");
    }

    /// Pastes a text as terminals do: marked, where the program has asked for that; lines end as Enter ends them.
    ///
    /// # Panics
    /// The program no longer reads.
    pub fn paste(&self, text: &str) {
        let screen = self.screen.lock();
        let marked = screen
            .unwrap_or_else(PoisonError::into_inner)
            .screen()
            .bracketed_paste();
        let text = text.replace('\n', "\r");
        match marked {
            true => self.keys(&format!("\x1b[200~{text}\x1b[201~")),
            false => self.keys(&text),
        }
    }

    /// What stands on the screen.
    pub fn screen(&self) -> String {
        self.screen
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .screen()
            .contents()
    }

    /// Waits until the screen passes a check.
    ///
    /// # Panics
    /// It does not within a minute; shows the screen.
    pub fn wait(&self, what: &str, check: impl Fn(&str) -> bool) -> String {
        let start = Instant::now();
        loop {
            let screen = self.screen();
            if check(&screen) {
                return screen;
            }
            assert!(
                start.elapsed() < Duration::from_secs(60),
                "{what} did not come:\n{screen}"
            );
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Waits for the program's end and gives its exit code.
    ///
    /// # Panics
    /// It does not end within 20 seconds.
    pub fn exit_code(mut self) -> u32 {
        let start = Instant::now();
        loop {
            if let Ok(Some(status)) = self.child.try_wait() {
                return status.exit_code();
            }
            assert!(
                start.elapsed() < Duration::from_secs(20),
                "the program does not end:\n{}",
                self.screen()
            );
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.child.kill();
    }
}
