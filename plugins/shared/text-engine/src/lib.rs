//! Sequences over any device: KV cache, scheduler, sampling, streams.
