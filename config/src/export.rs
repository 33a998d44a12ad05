//! What to export, on the command line: `PATH[,size=..][,block_size=..][,read_only]`, `device:PATH`, `memory:SIZE`.

use std::{fmt, path::PathBuf, str::FromStr};

use crate::{Backend, BlockSize, BlockSizeError, Size, SizeError};

/// One `--export` argument.
///
/// `PATH` is a file; with `size=` it is made when there is none. A comma in a path is written twice, as with qemu.
/// `file:PATH` is for paths that start with `device:` or `memory:`. The options `block_size=` and `read_only` go with each kind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Export {
    /// Where the blocks are; the path is as it was written.
    pub backend: Backend,
    /// Logical block size; absent as in [`Namespace::block_size`](crate::Namespace::block_size).
    pub block_size: Option<BlockSize>,
    /// Whether writes are refused.
    pub read_only: bool,
}

/// Why a text is not an [`Export`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ExportError {
    /// Nothing to export.
    #[error("the path is missing in `{0}`: write PATH[,size=SIZE][,block_size=SIZE][,read_only], device:PATH or memory:SIZE")]
    NoPath(String),
    /// A NUL byte.
    #[error("the path has a NUL byte")]
    PathNul,
    /// An option that does not exist.
    #[error(
        "`{0}` is not an option of an export: the options are size=SIZE, block_size=SIZE and read_only (a comma in a path is written twice)"
    )]
    Option(String),
    /// `read_only=...`.
    #[error("`read_only` takes no value: write it alone, or leave it out")]
    ReadOnlyValue,
    /// An option without its value.
    #[error("the option `{0}` needs a value, as in {0}=4KiB")]
    NoValue(&'static str),
    /// The same option twice.
    #[error("the option `{0}` is there twice")]
    Twice(&'static str),
    /// `size=` for what has a size.
    #[error("`size` is for files only: {0}")]
    SizeElsewhere(&'static str),
    /// The size.
    #[error(transparent)]
    Size(#[from] SizeError),
    /// The block size.
    #[error(transparent)]
    BlockSize(#[from] BlockSizeError),
}

impl FromStr for Export {
    type Err = ExportError;

    fn from_str(text: &str) -> Result<Self, ExportError> {
        let mut parts = split_at_single_commas(text).into_iter();
        let subject = parts.next().unwrap_or_default();
        let options = Options::read(parts)?;
        let backend = match subject.split_once(':') {
            Some(("memory", size)) => {
                options.refuse_size("the size of memory is written as memory:SIZE")?;
                Backend::Memory { size: size.parse()? }
            }
            Some(("device", path)) => {
                options.refuse_size("a device has its own size")?;
                Backend::Device { path: check_path(path, text)? }
            }
            other => {
                let path = match other {
                    Some(("file", path)) => path,
                    _ => &subject,
                };
                Backend::File { path: check_path(path, text)?, size: options.size, create: options.size.is_some() }
            }
        };
        Ok(Self { backend, block_size: options.block_size, read_only: options.read_only })
    }
}

/// Splits at commas; a doubled comma is one comma of the text.
fn split_at_single_commas(text: &str) -> Vec<String> {
    let mut parts = vec![String::new()];
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        match (c, parts.last_mut()) {
            (',', Some(last)) if chars.next_if_eq(&',').is_some() => last.push(','),
            (',', _) => parts.push(String::new()),
            (c, Some(last)) => last.push(c),
            (_, None) => unreachable!("there is always a part"),
        }
    }
    parts
}

fn check_path(path: &str, text: &str) -> Result<PathBuf, ExportError> {
    if path.is_empty() {
        return Err(ExportError::NoPath(text.to_owned()));
    }
    if path.contains('\0') {
        return Err(ExportError::PathNul);
    }
    Ok(path.into())
}

#[derive(Default)]
struct Options {
    size: Option<Size>,
    block_size: Option<BlockSize>,
    read_only: bool,
}

impl Options {
    fn read(parts: impl Iterator<Item = String>) -> Result<Self, ExportError> {
        let mut options = Self::default();
        for part in parts {
            match part.split_once('=') {
                Some(("size", "")) => return Err(ExportError::NoValue("size")),
                Some(("block_size", "")) => return Err(ExportError::NoValue("block_size")),
                Some(("size", value)) => once("size", &mut options.size, value.parse()?)?,
                Some(("block_size", value)) => {
                    once("block_size", &mut options.block_size, value.parse()?)?;
                }
                Some(("read_only", _)) => return Err(ExportError::ReadOnlyValue),
                None if part == "read_only" && options.read_only => {
                    return Err(ExportError::Twice("read_only"));
                }
                None if part == "read_only" => options.read_only = true,
                None if part == "size" => return Err(ExportError::NoValue("size")),
                None if part == "block_size" => return Err(ExportError::NoValue("block_size")),
                _ => return Err(ExportError::Option(part)),
            }
        }
        Ok(options)
    }

    fn refuse_size(&self, instead: &'static str) -> Result<(), ExportError> {
        match self.size {
            Some(_) => Err(ExportError::SizeElsewhere(instead)),
            None => Ok(()),
        }
    }
}

fn once<T>(name: &'static str, slot: &mut Option<T>, value: T) -> Result<(), ExportError> {
    match slot.replace(value) {
        Some(_) => Err(ExportError::Twice(name)),
        None => Ok(()),
    }
}

impl fmt::Display for Export {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let doubled = |path: &PathBuf| path.to_string_lossy().replace(',', ",,");
        match &self.backend {
            Backend::File { path, size, .. } => {
                let path = doubled(path);
                let prefix = if path.contains(':') { "file:" } else { "" };
                write!(f, "{prefix}{path}")?;
                size.map_or(Ok(()), |size| write!(f, ",size={size}"))?;
            }
            Backend::Device { path } => write!(f, "device:{}", doubled(path))?,
            Backend::Memory { size } => write!(f, "memory:{size}")?,
        }
        if let Some(block_size) = self.block_size {
            write!(f, ",block_size={block_size}")?;
        }
        f.write_str(if self.read_only { ",read_only" } else { "" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn refusal(text: &str) -> String {
        text.parse::<Export>().expect_err(text).to_string()
    }

    #[test]
    fn reads_files_devices_and_memory() {
        let export: Export = "disk.img,size=1GiB,block_size=512,read_only".parse().unwrap();
        assert_eq!(export.backend, Backend::File { path: "disk.img".into(), size: Some(Size::from_bytes(1 << 30)), create: true });
        assert_eq!((export.block_size.map(BlockSize::bytes), export.read_only), (Some(512), true));
        for (text, backend) in [
            ("/a", Backend::File { path: "/a".into(), size: None, create: false }),
            ("a,,b", Backend::File { path: "a,b".into(), size: None, create: false }),
            ("c:d", Backend::File { path: "c:d".into(), size: None, create: false }),
            ("file:memory:1", Backend::File { path: "memory:1".into(), size: None, create: false }),
            ("device:/dev/sdb", Backend::Device { path: "/dev/sdb".into() }),
            ("memory:64MiB", Backend::Memory { size: Size::from_bytes(64 << 20) }),
        ] {
            let export: Export = text.parse().unwrap();
            assert_eq!((export.backend, export.block_size, export.read_only), (backend, None, false), "{text}");
        }
    }

    #[test]
    fn refuses_with_what_would_be_right() {
        let no_path = |text: &str| {
            format!("the path is missing in `{text}`: write PATH[,size=SIZE][,block_size=SIZE][,read_only], device:PATH or memory:SIZE")
        };
        let option = |text: &str| {
            format!(
                "`{text}` is not an option of an export: the options are size=SIZE, block_size=SIZE and read_only (a comma in a path is written twice)"
            )
        };
        for (text, expected) in [
            ("", no_path("")),
            (",size=1", no_path(",size=1")),
            ("device:", no_path("device:")),
            ("a\0", "the path has a NUL byte".to_owned()),
            ("a,", option("")),
            ("a,ro", option("ro")),
            ("a,Size=1", option("Size=1")),
            ("a,size", "the option `size` needs a value, as in size=4KiB".to_owned()),
            ("a,block_size=", "the option `block_size` needs a value, as in block_size=4KiB".to_owned()),
            ("a,size=1,size=2", "the option `size` is there twice".to_owned()),
            ("a,read_only,read_only", "the option `read_only` is there twice".to_owned()),
            ("a,read_only=yes", "`read_only` takes no value: write it alone, or leave it out".to_owned()),
            ("memory:1MiB,size=2MiB", "`size` is for files only: the size of memory is written as memory:SIZE".to_owned()),
            ("device:/dev/sdb,size=1", "`size` is for files only: a device has its own size".to_owned()),
            ("memory:", "the size is empty: write a number of bytes, such as 512, 4KiB or 10GiB".to_owned()),
            ("a,size=big", "the size `big` does not start with a number: write it as 512, 4KiB or 10GiB".to_owned()),
            ("a,block_size=8KiB", "the block size must be 512, 1024, 2048 or 4096, not 8KiB".to_owned()),
        ] {
            assert_eq!(refusal(text), expected, "{text}");
        }
    }

    proptest! {
        #[test]
        fn what_is_read_prints_and_reads_back(
            text in "(device:|memory:[0-9]|file:)?[a-c,:/]{0,9}(,size=[0-9]KiB)?(,block_size=(512|4KiB))?(,read_only)?|\\PC{0,20}"
        ) {
            if let Ok(export) = text.parse::<Export>() {
                prop_assert_eq!(export.to_string().parse(), Ok(export));
            }
        }
    }
}
