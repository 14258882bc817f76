//! Sends a module's `tracing` events to its host. Each module has a dispatcher of its own, so that without this they
//! would go nowhere.

use crate::abi::codes::LogLevel;
use crate::abi::data::LogRecord;
use crate::abi::traits::HostServicesObject;
use std::fmt::{Debug, Write};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

struct Forward {
    services: HostServicesObject,
}

/// Makes `services` the destination of this module's events, unless the module has chosen another.
pub(crate) fn install(services: HostServicesObject) {
    // An error says that a destination was already chosen, which stands.
    let _ = tracing::subscriber::set_global_default(Forward { services });
}

impl Subscriber for Forward {
    fn register_callsite(
        &self,
        _metadata: &'static Metadata<'static>,
    ) -> tracing::subscriber::Interest {
        // Asked each time: the host's filter may change while it runs.
        tracing::subscriber::Interest::sometimes()
    }

    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_event()
            && self
                .services
                .log_enabled(LogLevel::from(*metadata.level()), metadata.target().into())
    }

    fn new_span(&self, _attributes: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _span: &Id, _values: &Record<'_>) {}

    fn record_follows_from(&self, _span: &Id, _follows: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut line = Line::default();
        event.record(&mut line);
        let metadata = event.metadata();
        let message = line.message + &line.fields;
        self.services.log(LogRecord {
            level: LogLevel::from(*metadata.level()),
            target: metadata.target().into(),
            message: message.as_str().into(),
            file: metadata.file().unwrap_or_default().into(),
            line: metadata.line().unwrap_or_default(),
        });
    }

    fn enter(&self, _span: &Id) {}

    fn exit(&self, _span: &Id) {}
}

#[derive(Default)]
struct Line {
    message: String,
    fields: String,
}

impl Visit for Line {
    fn record_str(&mut self, field: &Field, value: &str) {
        if field.name() == "message" {
            self.message.push_str(value);
        } else {
            let _ = write!(self.fields, " {}={value:?}", field.name());
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        let _ = if field.name() == "message" {
            write!(self.message, "{value:?}")
        } else {
            write!(self.fields, " {}={value:?}", field.name())
        };
    }
}
