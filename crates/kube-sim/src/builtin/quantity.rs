//! Quantities, such as `500m` or `1Gi`. The API server writes each quantity in its canonical form.

/// Number of digits after the decimal point that a quantity can have.
const SCALE: u32 = 9;
const BINARY: [&str; 7] = ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];
/// Decimal suffixes from 10⁻⁹ to 10¹⁸.
const DECIMAL: [&str; 10] = ["n", "u", "m", "", "k", "M", "G", "T", "P", "E"];

/// Returns the canonical form of a quantity, or `None` if the text is no quantity.
pub(crate) fn canonical(text: &str) -> Option<String> {
    let (is_negative, unsigned) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    let end = unsigned.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(unsigned.len());
    let (number, suffix) = unsigned.split_at_checked(end)?;
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if (whole.is_empty() && fraction.is_empty()) || fraction.contains('.') {
        return None;
    }
    let digits: i128 = format!("0{whole}{fraction}").parse().ok()?;
    let fraction = u32::try_from(fraction.len()).ok()?;
    let sign = if is_negative { "-" } else { "" };
    let canonical = if let Some(power) = BINARY.iter().skip(1).position(|known| *known == suffix) {
        let nano = scaled(digits.checked_mul(1024_i128.checked_pow(u32::try_from(power).ok()? + 1)?)?, 0, fraction)?;
        binary(nano)
    } else if let Some(power) = DECIMAL.iter().position(|known| *known == suffix) {
        let exponent = i32::try_from(power).ok()? * 3 - 9;
        decimal(scaled(digits, exponent, fraction)?, false)
    } else {
        let exponent: i32 = suffix.strip_prefix(['e', 'E'])?.parse().ok()?;
        decimal(scaled(digits, exponent, fraction)?, true)
    };
    Some(if canonical == "0" { canonical } else { format!("{sign}{canonical}") })
}

/// Returns a number in units of 10⁻⁹, rounded up.
fn scaled(digits: i128, exponent: i32, fraction: u32) -> Option<i128> {
    let power = i64::from(exponent) + i64::from(SCALE) - i64::from(fraction);
    if power >= 0 {
        return digits.checked_mul(10_i128.checked_pow(u32::try_from(power).ok()?)?);
    }
    let divisor = 10_i128.checked_pow(u32::try_from(-power).ok()?)?;
    Some((digits + divisor - 1) / divisor)
}

fn decimal(mut nano: i128, has_exponent: bool) -> String {
    if nano == 0 {
        return "0".to_owned();
    }
    let mut power = 0;
    while nano % 1000 == 0 && power + 1 < DECIMAL.len() {
        nano /= 1000;
        power += 1;
    }
    match DECIMAL.get(power).copied().unwrap_or_default() {
        "" => nano.to_string(),
        _ if has_exponent => format!("{nano}e{}", power as i32 * 3 - 9),
        suffix => format!("{nano}{suffix}"),
    }
}

fn binary(nano: i128) -> String {
    let unit = 10_i128.pow(SCALE);
    if nano < 1024 * unit {
        return decimal(nano, false);
    }
    let mut value = (nano + unit - 1) / unit;
    let mut power = 0;
    while value % 1024 == 0 && power + 1 < BINARY.len() {
        value /= 1024;
        power += 1;
    }
    format!("{value}{}", BINARY.get(power).copied().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::canonical;

    #[test]
    fn quantities_have_a_canonical_form() {
        let table = [
            ("1", "1"),
            ("1000m", "1"),
            ("0.5", "500m"),
            ("1.5", "1500m"),
            ("1024Mi", "1Gi"),
            ("1536Mi", "1536Mi"),
            ("0.5Gi", "512Mi"),
            ("1024", "1024"),
            ("1000", "1k"),
            ("1500", "1500"),
            ("2e3", "2e3"),
            ("1Ki", "1Ki"),
            ("0.5Ki", "512"),
            ("0", "0"),
            ("0Mi", "0"),
            ("-1000m", "-1"),
            ("100M", "100M"),
        ];
        for (text, expected) in table {
            assert_eq!(canonical(text).as_deref(), Some(expected), "{text}");
        }
        for text in ["", "abc", "1 Gi", "1.2.3", "Mi", "1GiB"] {
            assert_eq!(canonical(text), None, "{text}");
        }
    }
}
