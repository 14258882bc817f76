//! The index of a checkpoint in several files: JSON whose `weight_map` says which file each tensor is in.

use std::fmt;
use std::path::{Component, Path, PathBuf};

use serde::de::{Deserialize, Deserializer, Error as _, MapAccess, Visitor};

use super::header::{json_message, offset_of};
use crate::error::{Error, shown};
use crate::map::Map;

/// Reads an index: each tensor's name and that of its file, as they stand there.
pub(super) fn read(path: &Path) -> Result<Vec<(String, String)>, Error> {
    let map = Map::open_any(path, not_index)?;
    let index: Index = serde_json::from_slice(&map).map_err(|error| Error::Malformed {
        path: path.into(),
        offset: offset_of(&error, &map) as u64,
        what: "index".into(),
        found: json_message(&error),
        expected: "JSON with a weight_map of tensors and their files".into(),
    })?;
    let WeightMap(weight_map) = index.weight_map;
    if weight_map.is_empty() {
        return Err(not_index(path, "an empty weight_map".into()));
    }
    Ok(weight_map)
}

/// The path of a part that an index names: a file beside the index, and nowhere else.
pub(super) fn part(index: &Path, name: &str) -> Result<PathBuf, Error> {
    let mut components = Path::new(name).components();
    let plain = matches!(
        (components.next(), components.next()),
        (Some(Component::Normal(file)), None) if file == name
    );
    if !plain || name.contains(['\\', '\0']) {
        return Err(Error::Shard {
            path: index.into(),
            found: format!("a part named \"{}\"", shown(name)),
            expected: "the name of a file beside the index".into(),
        });
    }
    let path = index.with_file_name(name);
    if matches!(path.try_exists(), Ok(false)) {
        return Err(Error::Shard {
            path,
            found: "no file".into(),
            expected: format!("a part of the model, by {}", index.display()),
        });
    }
    Ok(path)
}

fn not_index(path: &Path, found: String) -> Error {
    Error::NotSafetensors {
        path: path.into(),
        found,
        expected: "an index of safetensors files",
    }
}

#[derive(serde::Deserialize)]
struct Index {
    weight_map: WeightMap,
}

struct WeightMap(Vec<(String, String)>);

impl<'de> Deserialize<'de> for WeightMap {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Pairs;

        impl<'de> Visitor<'de> for Pairs {
            type Value = Vec<(String, String)>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of tensors and their files")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut pairs = Vec::new();
                while let Some(pair) = map.next_entry()? {
                    pairs.push(pair);
                }
                Ok(pairs)
            }
        }

        let pairs = deserializer.deserialize_map(Pairs)?;
        let mut names: Vec<&str> = pairs.iter().map(|(name, _)| &**name).collect();
        names.sort_unstable();
        if let Some(twice) = names.windows(2).find(|pair| pair[0] == pair[1]) {
            let message = format!("tensor {}: the name twice", shown(twice[0]));
            return Err(D::Error::custom(message));
        }
        Ok(WeightMap(pairs))
    }
}
