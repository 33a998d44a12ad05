//! Which device of the kernel's NBD driver a volume becomes: `/dev/nbdN`, or `auto`.

use std::{fmt, str::FromStr};

/// A device of the kernel's NBD driver.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum NbdDevice {
    /// One that is free; after a restart, the one that the volume had.
    Auto,
    /// `/dev/nbdN`.
    Number(u32),
}

/// A text that is no [`NbdDevice`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not an NBD device: write /dev/nbdN, as in /dev/nbd0, or auto for a free one")]
pub struct NbdDeviceError(pub String);

impl FromStr for NbdDevice {
    type Err = NbdDeviceError;

    fn from_str(text: &str) -> Result<Self, NbdDeviceError> {
        let error = || NbdDeviceError(text.to_owned());
        if text == "auto" {
            return Ok(Self::Auto);
        }
        let number = text.strip_prefix("/dev/nbd").ok_or_else(error)?;
        let canonical = number.bytes().all(|byte| byte.is_ascii_digit()) && (number.len() == 1 || !number.starts_with('0'));
        number.parse().ok().filter(|_| canonical).map(Self::Number).ok_or_else(error)
    }
}

impl fmt::Display for NbdDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Number(number) => write!(f, "/dev/nbd{number}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_is_named_by_its_number() {
        for (text, device) in [("auto", NbdDevice::Auto), ("/dev/nbd0", NbdDevice::Number(0)), ("/dev/nbd15", NbdDevice::Number(15))] {
            assert_eq!(text.parse(), Ok(device));
        }
        assert_eq!(NbdDevice::Number(7).to_string(), "/dev/nbd7");
    }

    #[test]
    fn anything_else_is_told_what_would_be_right() {
        for text in [
            "",
            "nbd",
            "nbd0",
            "dev/nbd0",
            "/dev/nbd",
            "/dev/nbd01",
            "/dev/nbd+1",
            "/dev/nbd0p1",
            "/dev/sda",
            "0",
            "Auto",
            "/dev/nbd4294967296",
        ] {
            let told = text.parse::<NbdDevice>().unwrap_err().to_string();
            assert_eq!(told, format!("`{text}` is not an NBD device: write /dev/nbdN, as in /dev/nbd0, or auto for a free one"));
        }
    }
}
