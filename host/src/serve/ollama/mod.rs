//! Ollama's API, as far as its clients use it with models that are there.

mod embed;
mod models;
mod reply;
mod time;

pub(super) use embed::{embed, embeddings};
pub(super) use models::{running, show, tags, version};
pub(super) use reply::{chat, generate};
pub(super) use time::timestamp;

use super::errors::Problem;
use super::fields::Asked;
use super::http::App;
use super::models::{Served, find};
use std::sync::Arc;

/// The model of a name; a tag that says `latest` says nothing.
///
/// # Errors
/// There is none, or it was loaded with a shorter context than is asked for.
fn model(app: &App, asked: &Asked) -> Result<Arc<Served>, Problem> {
    let name = asked.model.as_str();
    let served = find(&app.models, name.strip_suffix(":latest").unwrap_or(name))?;
    let loaded = app.models.loaded(&served);
    let context = loaded.map(|model| model.info().loaded_context);
    if let (Some(wanted), Some(context)) = (asked.ollama.context, context)
        && u64::from(wanted) > context
    {
        let message = format!(
            "`num_ctx`: can't be honoured: {wanted} tokens, and {} was loaded with {context}",
            served.id
        );
        return Err(Problem::unsupported("options", message));
    }
    Ok(served)
}
